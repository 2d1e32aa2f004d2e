"""Makes a workspace in W&B that shows what this project logs: training, recovery, bits, lenses.

    pip install -e '.[boards]'
    wandb login
    python scripts/wandb_workspace.py ENTITY/PROJECT

A workspace is a saved view of a project; each start makes one more. Its panels have the x axes that
survive a resume.
"""

import argparse
import sys
from typing import Any

NAME, INSTALL = "remnant", "pip install -e '.[boards]'"
TRAINED, STEPS, SECONDS, ASKED = "tokens_seen", "trainer/global_step", "seconds", "checkpoint_step"
SECTIONS = {
    "Training": [
        ("Validation, bits per byte, by tokens", TRAINED, ["val_bits_per_byte"]),
        ("Validation, bits per byte, by seconds of training", SECONDS, ["val_bits_per_byte"]),
        ("Loss, nats per token", TRAINED, ["loss"]),
        ("Learning rate", STEPS, ["lr"]),
        ("Norm of the gradient", STEPS, ["gradient_norm"]),
        ("Tokens per second", STEPS, ["tokens_per_second"]),
    ],
    "Recovery": [
        ("Shown tokens recovered", TRAINED, ["eval/shown"]),
        ("One hidden token recovered", TRAINED, ["eval/hidden_1"]),
        ("Three hidden tokens recovered", TRAINED, ["eval/hidden_3"]),
    ],
    "Bits": [
        ("Bits about a token, four positions later", TRAINED, ["eval/bits_at_4"]),
        ("Bits per byte of held-out text", TRAINED, ["eval/bits_per_byte"]),
    ],
    "Lenses": [
        ("Main figure of each lens, by step", ASKED, [
            "lens/residual", "lens/logit", "lens/tuned", "lens/vectors", "lens/direction",
            "lens/circuits", "lens/detokenisation", "lens/attribution", "lens/patching",
            "lens/steering", "lens/features",
        ]),
    ],
}  # fmt: skip
"""Sections, and of each panel the title, the x axis and the curves."""


def build(entity: str, project: str) -> Any:
    """The workspace, which is saved nowhere yet."""
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as workspaces

    sections = [
        workspaces.Section(
            name=name,
            is_open=True,
            panels=[panels.LinePlot(title=title, x=x, y=list(y)) for title, x, y in plots],
        )
        for name, plots in SECTIONS.items()
    ]
    columns = [f"config:{name}.value" for name in ("recipe", "model_id", "parameters")]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis=TRAINED),
        runset_settings=workspaces.RunsetSettings(pinned_columns=columns),
    )


def main(words: list[str] | None = None) -> int:
    """Saves the workspace; 2 for a bad name, or where W&B is not here or refuses."""
    parser = argparse.ArgumentParser(description="Makes a workspace in W&B.")
    parser.add_argument("project", metavar="ENTITY/PROJECT")
    given = parser.parse_args(words).project
    entity, slash, project = given.partition("/")
    if not (entity and slash and project) or "/" in project:
        return _refuse(f"{given}: must be ENTITY/PROJECT, as in the address of the project")
    try:
        workspace = build(entity, project)
    except ModuleNotFoundError as error:
        return _refuse(f"{error.name} is not installed; fix, in the checkout: {INSTALL}")
    try:
        workspace.save()
    except Exception as error:  # many of W&B's are no `wandb.Error`
        of_wandb = type(error).__module__.startswith(("wandb", "pydantic", "requests"))
        if not (of_wandb or isinstance(error, ValueError | OSError)):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        return _refuse(f"{given}: {reason}; log in with `wandb login`, and log a run there first")
    print(workspace.url)
    return 0


def _refuse(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
