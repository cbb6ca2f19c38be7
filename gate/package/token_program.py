"""The separate process that uses a PKCS#11 token, so that the vendor's library can only crash here.

Standard input has a question in JSON: the PIN, and the message to sign or nothing. Standard output
gets an answer in JSON, with bytes in hexadecimal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

# Reasons in words for a person. Any other exception is reported by its name.
WORDS: Final = {
    "PinIncorrect": "the PIN is wrong",
    "PinLocked": "the PIN is locked after too many wrong ones",
    "PinInvalid": "the PIN has another form",
    "PinLenRange": "the PIN is too short or too long",
    "UserPinNotInitialized": "the token has no PIN yet",
    "UserNotLoggedIn": "it wants a PIN, and none was given",
    "TokenNotPresent": "there is no token",
    "MechanismInvalid": "the key cannot sign as the gate needs it",
}


def main() -> None:
    """Answer the question on standard input."""
    question = json.loads(sys.stdin.buffer.read())
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        # The library may print to descriptor 1, so point that at stderr and keep a copy for the
        # answer.
        os.dup2(2, 1)
        json.dump(token_answer(question), answers)


def token_answer(question: Mapping[str, Any]) -> dict[str, str]:
    """Return the key's public half, and a signature if there is a message to sign.

    If anything fails, the answer has `fault` alone, with the reason in words.
    """
    try:
        return _used(question)
    except LookupError as error:
        return {"fault": str(error.args[0])}
    except Exception as error:  # noqa: BLE001 - the last handler of this program
        # The exception's own text is left out, because a library may put anything into it, even the
        # PIN.
        name = type(error).__name__
        return {"fault": WORDS.get(name, f"the library reports {name}")}


def _used(question: Mapping[str, Any]) -> dict[str, str]:
    # Imported here: the package is optional, and only this function needs it.
    import pkcs11  # noqa: PLC0415 - as above

    library = pkcs11.lib(question["module"])
    token = _only("token", _tokens(library, question), lambda candidate: str(candidate.label))
    with token.open(user_pin=question["pin"] or None) as session:
        private = _object(session, question, pkcs11.ObjectClass.PRIVATE_KEY)
        public = _object(session, question, pkcs11.ObjectClass.PUBLIC_KEY)
        point = public[pkcs11.Attribute.EC_POINT].hex()
        parameters = public[pkcs11.Attribute.EC_PARAMS].hex()
        answer = {"point": point, "parameters": parameters}
        if "message" in question:
            edwards = private.key_type is pkcs11.KeyType.EC_EDWARDS
            mechanism = pkcs11.Mechanism.EDDSA if edwards else pkcs11.Mechanism.ECDSA
            # ECDSA gets the digest, because every token can sign one. Ed25519 signs the message
            # itself.
            given = bytes.fromhex(question["message" if edwards else "digest"])
            answer["signature"] = private.sign(given, mechanism=mechanism).hex()
        return answer


def _tokens(library: Any, question: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401 - no types there
    token_question = {"token_label": question["token"], "token_serial": question["serial"].encode()}
    return list(
        library.get_tokens(**{name: value for name, value in token_question.items() if value})
    )


def _object(session: Any, question: Mapping[str, Any], kind: Any) -> Any:  # noqa: ANN401 - as above
    import pkcs11  # noqa: PLC0415 - as above

    object_question = {pkcs11.Attribute.CLASS: kind}
    if question["key_label"]:
        object_question[pkcs11.Attribute.LABEL] = question["key_label"]
    if question["key_id"]:
        object_question[pkcs11.Attribute.ID] = bytes.fromhex(question["key_id"])
    # Read to the end: a search that is still open keeps the session from signing.
    name = "private key" if kind is pkcs11.ObjectClass.PRIVATE_KEY else "public key"
    return _only(
        name, list(session.get_objects(object_question)), lambda candidate: str(candidate.label)
    )


def _only(name: str, candidates: list[Any], shown: Callable[[Any], str]) -> Any:  # noqa: ANN401 - as above
    """Return the only candidate; with several, the signing key would depend on their order."""
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        message = f"there is no such {name}"
        raise LookupError(message)
    message = f"{len(candidates)} of these are a {name}: {', '.join(map(shown, candidates[:3]))}"
    raise LookupError(message)
