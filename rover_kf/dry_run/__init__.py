# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A few real steps of a user's script, watched from inside its process; standard library and torch.

``python -m rover_kf.dry_run ORDERS.json`` runs the script of a training command as it is: hooks
on optimizers, modules and data loaders see its steps, its batch and its waits, and end it after
the steps that were ordered. The script is not changed and learns nothing of it.
"""
