# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m controller``: what the controller's image starts."""

from controller.main import main

if __name__ == "__main__":
    main()
