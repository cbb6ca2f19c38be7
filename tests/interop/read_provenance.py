"""A provenance, read by in-toto's own schema, which refuses unknown fields. Runs in its own venv.

Arguments: bare envelope.
"""

import base64
import json
import sys
from pathlib import Path

from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import resource_descriptor_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

envelope = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
statement = json.loads(base64.b64decode(envelope["payload"]))
predicate = ParseDict(statement["predicate"], provenance_pb2.Provenance())
descriptors = [
    *(
        ParseDict(each, resource_descriptor_pb2.ResourceDescriptor())
        for each in statement["subject"]
    ),
    *predicate.build_definition.resolved_dependencies,
    *predicate.run_details.byproducts,
]
for each in descriptors:
    ResourceDescriptor.copy_from_pb(each).validate()
if not predicate.build_definition.build_type or not predicate.run_details.builder.id:
    sys.exit("no build type, or no builder")
