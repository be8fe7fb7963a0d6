"""Validation against the JSON Schemas under harness/results."""

import json
from typing import Any

from cli import ROOT
from jsonschema import Draft202012Validator
from referencing import Registry, Resource


def _load(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "harness/results" / name).read_text(encoding="utf-8"))


_RESULTS = _load("results.schema.json")
_PROFILE = _load("profile.schema.json")
_TUNING = _load("tuning.schema.json")
_VERSIONS = _load("versions.schema.json")
_PEERS = _load("peers.schema.json")
_PEERS_BY_DATA = _load("peers_by_data.schema.json")
_PEERS_BY_PROBLEM = _load("peers_by_problem.schema.json")
_PEERS_DECODING = _load("peers_decoding.schema.json")
_PEERS_GRADIENTS = _load("peers_gradients.schema.json")
_FP8_ERROR = _load("fp8_error.schema.json")
_PEER_CASES = _load("peer_cases.schema.json")
_MODELS = _load("models.schema.json")
_TRAINING = _load("training.schema.json")
_DEBUG = _load("debug.schema.json")
_DEBUG_GRADIENTS = _load("debug_gradients.schema.json")
_NCU = _load("ncu.schema.json")
_COMPARISON = _load("comparison.schema.json")
_RECORDINGS = _load("recordings.schema.json")
_GRADE = _load("grade.schema.json")
_REGISTRY = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in (_RESULTS, _PROFILE, _PEERS, _PEERS_BY_PROBLEM)
)


def _validate(schema: dict[str, Any], document: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, registry=_REGISTRY).validate(document)


def validate_results(document: dict[str, Any]) -> None:
    """A document as --json writes it."""
    _validate(_RESULTS, document)


def validate_tuning(document: dict[str, Any]) -> None:
    """A tuning.json as --tune writes it."""
    _validate(_TUNING, document)


def validate_versions(document: dict[str, Any]) -> None:
    """A document as --list --json writes it."""
    _validate(_VERSIONS, document)


def validate_debug(document: dict[str, Any]) -> None:
    """A document as --debug --json writes it."""
    _validate(_DEBUG, document)


def validate_debug_gradients(document: dict[str, Any]) -> None:
    """The same for a version that computes gradients."""
    _validate(_DEBUG_GRADIENTS, document)


def validate_peers(document: dict[str, Any]) -> None:
    """A peers.json as scripts/peers writes it."""
    _validate(_PEERS, document)


def validate_peers_by_data(document: dict[str, Any]) -> None:
    """A peers_by_data.json as scripts/peers --data writes it."""
    _validate(_PEERS_BY_DATA, document)


def validate_peers_decoding(document: dict[str, Any]) -> None:
    """A peers_decoding.json as scripts/peers --decoding writes it."""
    _validate(_PEERS_DECODING, document)


def validate_peers_by_problem(document: dict[str, Any]) -> None:
    """A peers_by_problem.json as scripts/peers --problem writes it."""
    _validate(_PEERS_BY_PROBLEM, document)


def validate_peers_gradients(document: dict[str, Any]) -> None:
    """A peers_gradients.json as scripts/peers --gradients writes it."""
    _validate(_PEERS_GRADIENTS, document)


def validate_fp8_error(document: dict[str, Any]) -> None:
    """A fp8_error.json as scripts/fp8_error.py --record writes it."""
    _validate(_FP8_ERROR, document)


def validate_peer_cases(document: dict[str, Any]) -> None:
    """A peer_cases.json as scripts/peer_cases.py --record writes it."""
    _validate(_PEER_CASES, document)


def validate_training(document: dict[str, Any]) -> None:
    """A training.json as scripts/train_gpt.py --record writes it."""
    _validate(_TRAINING, document)


def validate_models(document: dict[str, Any]) -> None:
    """A models.json as scripts/model_example.py --record writes it."""
    _validate(_MODELS, document)


def validate_profile(document: dict[str, Any]) -> None:
    """A profile as --record writes it."""
    _validate(_PROFILE, document)


def validate_ncu(document: dict[str, Any]) -> None:
    """An ncu.json as scripts/ncu_counters.py writes it."""
    _validate(_NCU, document)


def validate_comparison(document: dict[str, Any]) -> None:
    """A document as --diff --json writes it."""
    _validate(_COMPARISON, document)


def validate_recordings(document: dict[str, Any]) -> None:
    """A document as --profiles A B --json writes it."""
    _validate(_RECORDINGS, document)


def validate_grade(document: dict[str, Any]) -> None:
    """A document as --grade --report writes it."""
    _validate(_GRADE, document)
