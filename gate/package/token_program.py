"""A program of its own that uses a PKCS#11 token: the maker's library may hang or crash here alone.

A question in JSON on standard input, with the PIN and what is to be signed, or nothing to sign: an
answer in JSON on standard output, hexadecimal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

# What may be wrong, in words for a person; anything else is reported by the exception's name.
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
        # what the library prints must not be in the answer
        os.dup2(2, 1)
        json.dump(token_answer(question), answers)


def token_answer(question: Mapping[str, Any]) -> dict[str, str]:
    """The key's public half, and a signature where something is to be signed.

    `fault` alone says in words what is wrong.
    """
    try:
        return _used(question)
    except LookupError as error:
        return {"fault": str(error.args[0])}
    except Exception as error:  # noqa: BLE001 - the last handler of this program
        # its own text is left out: a library may put anything into it
        name = type(error).__name__
        return {"fault": WORDS.get(name, f"the library reports {name}")}


def _used(question: Mapping[str, Any]) -> dict[str, str]:
    # here and not above: an optional package, of which only this program needs to know
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
            # ECDSA takes the digest, which every token can; Ed25519 the message itself
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
    # as a list: a search that is not over keeps the session from signing
    name = "private key" if kind is pkcs11.ObjectClass.PRIVATE_KEY else "public key"
    return _only(
        name, list(session.get_objects(object_question)), lambda candidate: str(candidate.label)
    )


def _only(name: str, candidates: list[Any], shown: Callable[[Any], str]) -> Any:  # noqa: ANN401 - as above
    """The one that was found; which key signs must not depend on an order."""
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        message = f"there is no such {name}"
        raise LookupError(message)
    message = f"{len(candidates)} of these are a {name}: {', '.join(map(shown, candidates[:3]))}"
    raise LookupError(message)
