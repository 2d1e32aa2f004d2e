"""Claims made small enough for a test, and a place to run them in."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer

from eval.__main__ import main
from eval.claims import curves, registry
from eval.claims.curves import Plan
from eval.claims.entries import Arm, Claim, Protocol, Source
from eval.claims.registry import claims
from eval.rows import read_rows

FEW = {"descent": {"steps": 8}, "adam": {"steps": 8}, "alternating": {"starts": 1, "rounds": 2}}
SOURCE = Source("made-up", "A. Author", "A title", 2020, "https://example.org")
TINY = {"d_model": 16, "n_layers": 2, "context": 32, "d_ff": 32}


def record(protocol: str, method: str, share: float, **others: object) -> dict[str, Any]:
    """A claim's rows summed up, an interval of 0.1 on both sides of the share."""
    family = {"descent": "gradient", "adam": "gradient", "chance": "control"}.get(method, "search")
    return {
        "claim": 7, "arm": "", "protocol": protocol, "method": method, "family": family,
        "control": None, "padded": False, "self": share, "nonself": share,
        "nonself_low": share - 0.1, "nonself_high": share + 0.1, "prompts": 50, "models": 3,
        "sizes": ["flat d16 n1 untrained"],
    } | others  # fmt: skip


def small(claim: Claim) -> Claim:
    """The same claim of tiny models, few prompts and few steps."""
    return replace(claim, arms=tuple(_arm(arm) for arm in claim.arms))


def briefly(number: int, **models: Any) -> Claim:
    """A small claim whose prompt fits a context of 24 bytes, of other models."""
    claim = small(claims()[number])
    return replace(claim, arms=brief(claim.arms, models))


def brief(arms: tuple[Arm, ...], models: dict[str, Any]) -> tuple[Arm, ...]:
    return tuple(
        replace(
            arm,
            reported=arm.reported and replace(arm.reported, text=("The sky is.",)),
            models=replace(arm.models, **models),
        )
        for arm in arms
    )


def use(monkeypatch: pytest.MonkeyPatch, claims: list[Claim]) -> None:
    """Makes these the registry."""
    known = {claim.number: claim for claim in claims}
    monkeypatch.setattr(registry, "claims", lambda: known)


def use_tiny_curves(monkeypatch: pytest.MonkeyPatch, values: dict[str, list]) -> Plan:
    """Makes the curves those of the file, with these values, of tiny models and few steps."""
    data = yaml.safe_load(curves.FILE.read_text())
    data |= {"seeds": 1, "stories": {"base": 2, "axes": 1, "apart": 2}}
    data["base"] |= {"width": 16, "depth": 2, "context": 16, "length": 4}
    heads = "attention(heads=2)"
    data["architectures"]["hybrid"]["mixers"][0] = heads
    data["architectures"]["llama"] |= {"mixers": [heads], "d_ff": 44}
    for own in (data["methods"], data["axes"]["noise"]["methods"]):
        for methods in own.values():
            for name, few in (("descent", {"steps": 4}), ("adam", {"steps": 4})):
                methods[name] |= few
            if "alternating" in methods:
                methods["alternating"] = {"starts": 1, "rounds": 1}
    for axis, chosen in values.items():
        data["axes"][axis]["values"] = chosen
    tiny = curves.read_plan(data)
    monkeypatch.setattr(curves, "plan", lambda: tiny)
    return tiny


def run(*words: object) -> int:
    """Asks claims, on a built-in corpus."""
    return main(["claims", "run", *map(str, words), "--corpus", "toy:400"])


def asked_in(out: Path) -> set[tuple[int, str]]:
    """The claims that were asked, and under which protocols."""
    rows = [row for row in read_rows([out]) if row["kind"] == "claim"]
    return {(row["claim"], row["protocol"]) for row in rows}


def prepared(out: Path, tokenizer: Tokenizer) -> Path:
    """A results directory with a tokenizer, so that none is trained."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    return out


def _arm(arm: Arm) -> Arm:
    models = arm.models
    if models.own:
        mixers = [_narrow(mixer) for mixer in models.config["mixers"]]
        config = models.config | TINY | {"mixers": mixers}
        models = replace(models, config=config, cpu={})
    reported, fair = (each and _protocol(each) for each in (arm.reported, arm.fair))
    return replace(arm, models=models, reported=reported, fair=fair)


def _narrow(mixer: str) -> str:
    return "attention(heads=2)" if mixer.startswith("attention") else mixer


def _protocol(protocol: Protocol) -> Protocol:
    methods = {label: _few(label, own) for label, own in protocol.methods.items()}
    changes: dict[str, Any] = {"methods": methods, "pad_to": min(protocol.pad_to, 24), "seeds": 1}
    if not protocol.text:
        changes |= {"count": 3, "length": min(protocol.length, 6), "skip": 0}
    return replace(protocol, **changes)


def _few(label: str, settings: dict[str, Any]) -> dict[str, Any]:
    return settings | FEW.get(label, {})
