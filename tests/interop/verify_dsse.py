"""A bare envelope, checked by securesystemslib: exit code 0, or the error. Runs in its own venv.

Arguments: envelope, public key as PEM.
"""

import hashlib
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from securesystemslib import signer
from securesystemslib.dsse import Envelope

envelope = Envelope.from_dict(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
public = load_pem_public_key(Path(sys.argv[2]).read_bytes())
der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
# the id that the envelope names: the library asks for it
key = signer.SSlibKey.from_crypto(public, keyid=hashlib.sha256(der).hexdigest())
envelope.verify([key], 1)
