"""Hidden states that vLLM writes: a file for each request, with its token ids beside them."""

from eval.captured.files.arrays import Entry
from eval.captured.files.kinds.kind import FLOAT_NAMES, INTEGERS, Capture, Source
from eval.captured.files.tensors import Outputs

STATES, IDS = "hidden_states", "token_ids"


def recognise(source: Source) -> bool:
    """`hidden_states` of three axes, and `token_ids`, which are not as many as its second axis."""
    if set(source.entries) != {STATES, IDS}:
        return False
    states, ids = source.entries[STATES].shape, source.entries[IDS].shape
    return len(states) == 3 and len(ids) == 1 and (ids[0] != states[1] or ids[0] == states[0])


def read(source: Source) -> Capture:
    """`hidden_states.I`, `(T, width)`, of each layer I of the file, whose numbers it does not say.

    Layout: `vllm/v1/example_hidden_states_connector.py`. With prefix caching vLLM writes all ids,
    and the states of the last tokens alone (vllm-project/vllm#44485): the ids are read then.

    Raises:
        RequestError: another type, or more states than tokens.
    """
    states, ids = source.entries[STATES], source.entries[IDS]
    T, layers, width = states.shape
    if states.kind not in FLOAT_NAMES or ids.kind not in INTEGERS:
        raise source.refuse(
            f"{STATES} {states}, {IDS} {ids}; vLLM writes floats of 16 bits or more, and int64"
        )
    if ids.shape[0] > T:
        why = (
            f"has states of {T} of its {ids.shape[0]} tokens alone, as vLLM writes them with "
            "prefix caching; capture with --no-enable-prefix-caching, or leave --verify out"
        )
        if T == 1:
            why += "; if its first axis is that of prompts, save (T, width)"
        return Capture(f"vLLM: {ids.shape[0]} token ids", {}, [ids.read().tolist()], refusal=why)
    if ids.shape != (T,) or not T * layers * width:
        raise source.refuse(f"{IDS} {ids}: {STATES} {states} has {T} tokens; give both whole")
    outputs = {f"{STATES}.{i}": _entry(states, i) for i in range(layers)}
    stack = Entry((1, *states.shape), states.kind, lambda: states.read()[None])
    kind = f"vLLM hidden states: {T} tokens, {layers} layers, {width} channels"
    held = ids.read().tolist()
    return Capture(kind, outputs, [held], {STATES: Outputs(stack)} if layers > 1 else {})


def _entry(states: Entry, layer: int) -> Outputs:
    T, _, width = states.shape
    entry = Entry((T, width), states.kind, lambda: states.read()[:, layer].contiguous())
    return Outputs(entry)
