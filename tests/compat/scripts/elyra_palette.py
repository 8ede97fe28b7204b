# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Component files as Elyra reads them for its palette; prints what a person would be shown."""

from __future__ import annotations

import json
import sys

from elyra.pipeline.catalog_connector import FilesystemComponentCatalogConnector
from elyra.pipeline.component import ComponentParser
from elyra.pipeline.component_catalog import ComponentCache
from elyra.pipeline.component_metadata import ComponentCatalogMetadata
from elyra.pipeline.runtime_type import RuntimeProcessorType

platform = RuntimeProcessorType.KUBEFLOW_PIPELINES
catalog = ComponentCatalogMetadata(
    name="rover-kf",
    display_name="rover-kf",
    schema_name="local-file-catalog",
    metadata={"runtime_type": platform.name, "categories": ["training"], "paths": sys.argv[1:]},
)
connector = FilesystemComponentCatalogConnector([".yaml"])
reader = ComponentParser.create_instance(platform)
components = {
    entry.entry_reference["path"]: reader.parse(entry)
    for entry in connector.read_component_definitions(catalog)
}
palette = ComponentCache.to_canvas_palette(
    [one for found in components.values() for one in found or ()]
)
shown = {
    path: {
        "name": component.name,
        "properties": {
            item.ref: [item.json_data_type, item.required, item.value, item.allowed_input_types]
            for item in component.properties
        },
    }
    for path, found in components.items()
    for component in found or ()
}
labels = [node["label"] for group in palette["categories"] for node in group["node_types"]]
print(json.dumps({"shown": shown, "palette": labels}))
