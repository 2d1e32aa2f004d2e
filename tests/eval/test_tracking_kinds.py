"""What W&B gets of rows of other kinds than recoveries: all that the comparison reads of them."""

from typing import Any

from eval.tracking import STEP, history, track_results
from tests.eval.compare_cases import OF_CLAIM
from tests.eval.report.cases import make_row
from tests.eval.test_tracking import logged, offline_records


def about(step: int, weights: str = "a", name: str = "flat") -> dict[str, Any]:
    known = make_row("flat", step)["checkpoint"]
    return known | {"name": name, "weights_sha256": f"{weights}{step}"}


def row(kind: str, checkpoint: dict[str, Any], **changes: Any) -> dict[str, Any]:
    weights = checkpoint["weights_sha256"]
    return {"key": f"{kind} {weights} {changes}", "kind": kind, "checkpoint": checkpoint} | changes


def lens(checkpoint: dict[str, Any], value: float | None, layer: int = 1) -> dict[str, Any]:
    return row("lens", checkpoint, lens="residual", figure="norm", layer=layer, value=value,
               prompts=4, prompt_kind="story", look=checkpoint["weights_sha256"])  # fmt: skip


def every_kind(checkpoint: dict[str, Any]) -> list[dict[str, Any]]:
    site = {"site": {"layer": 4, "part": "block"}}
    parts = {"nats": [3.0, 4.0], "tokens": [1, 1], "bytes": [2, 2]}
    return [
        lens(checkpoint, 2.0 + checkpoint["step"]),
        lens(checkpoint, None, layer=2),
        row("loss", checkpoint, corpus="toy", stories=2, parts=parts, bits_per_byte=2.5,
            nats_per_token=3.5, tokens_per_second=9.0),
        *[row("retrieval", checkpoint, layer=2, pool="mean", method="as it is", sentence="last",
              candidates=n, corpus="toy", queries=9, top1=2 / n, low=0.0, high=1.0, chance=1 / n)
          for n in (4, 8)],
        row("probe", checkpoint, method="ridge", offset=-1, top1=0.25, information=0.5, **site),
        row("geometry", checkpoint, sigma_min=0.5, hidden=0, sigma_max=2.0, condition=4.0,
            effective_rank=3.0, stable_rank=2.0, inputs=8, removed=1, **site),
        row("curve", checkpoint, axis="channels", length=8, method="adam", value=63, low=56,
            high=76, **site),
    ]  # fmt: skip


NAMES = {
    "lens/norm/layer 1/lens residual/prompts 4/prompt_kind story": 102.0,
    "loss/nats/token/corpus toy/stories 2": 3.5,
    "retrieval/top-1/layer 2/pool mean/method as it is/sentence last/candidates 4/corpus toy": 0.5,
    "retrieval/top-1/layer 2/pool mean/method as it is/sentence last/candidates 8/corpus toy": 0.25,
    "probe/top-1/layer last/part block/offset -1/method ridge": 0.25,
    "geometry/sigma min/layer last/part block/hidden 0": 0.5,
    "curve/channels for half/layer last/part block/length 8/method adam": 63,
}


def test_every_kind_of_row_is_a_series_over_the_steps():
    first, last = history([*every_kind(about(100)), *every_kind(about(0))])
    assert (first[STEP], last[STEP]) == (0, 100)
    assert NAMES.items() <= last.items()
    assert set(first) == set(last)  # one name for all checkpoints
    assert not any(name.startswith("training/") for name in last)


def test_two_seeds_of_one_name_are_pooled_and_other_models_told_apart():
    name = "norm/layer 1/lens residual/prompts 4/prompt_kind story"
    seeds = [lens(about(0, "a"), 1.0), lens(about(0, "b"), 3.0)]
    (figures,) = history(seeds)
    assert figures[f"lens/{name}"] == 2.0
    wide = about(0, "c") | {"d_model": 512}
    (figures,) = history([*seeds, lens(wide, 9.0)])
    assert figures[f"lens/flat (d_model 128)/{name}"] == 2.0
    assert figures[f"lens/flat (d_model 512)/{name}"] == 9.0


def test_they_are_logged_and_claims_are_not(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    rows = [*every_kind(about(0)), *every_kind(about(100))]
    track_results(tmp_path, [*rows, OF_CLAIM])
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = offline_records(log)
    seen = [h for h in logged(records) if STEP in h]
    expected = history(rows)
    assert [{k: v for k, v in h.items() if not k.startswith("_")} for h in seen] == expected
    followed = {m.glob_name for m in records["metric"] if m.step_metric}
    assert followed == {f"{name.partition('/')[0]}/*" for name in expected[0] if name != STEP}
