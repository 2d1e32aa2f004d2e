"""Hidden states that vLLM writes: a file for each request, with its token ids beside them."""

from functools import partial

import torch

from eval.captured.files.kinds.kind import INTEGERS, Capture, Source
from eval.captured.files.stored import FLOAT_NAMES, FP8, dtype_name
from eval.captured.files.tensors import MASK, Outputs

STATES, IDS, SCALES = "hidden_states", "token_ids", "hidden_states_scales"
FP8_NAMES = frozenset(map(dtype_name, FP8.values()))


def recognise(source: Source) -> bool:
    """`hidden_states` of three axes, and `token_ids`, which are not as many as its second axis.

    Beside floats, and beside fp8 with `hidden_states_scales`, there may be other tensors, but no
    mask: a file is of one request.
    """
    if not {STATES, IDS} <= set(source.entries):
        return False
    more = set(source.entries) - {STATES, IDS}
    kinds = FP8_NAMES if SCALES in more else FLOAT_NAMES
    if more and (MASK in more or source.entries[STATES].kind not in kinds):
        return False
    states, ids = source.entries[STATES].shape, source.entries[IDS].shape
    return len(states) == 3 and len(ids) == 1 and (ids[0] != states[1] or ids[0] == states[0])


def read(source: Source) -> Capture:
    """`hidden_states.I`, `(T, width)`, of each layer I of the file, whose numbers it does not say.

    Layout: `vllm/v1/example_hidden_states_connector.py`. With prefix caching vLLM writes all ids,
    and the states of the last tokens alone (vllm-project/vllm#44485): the ids are read then.
    Connectors of speculators write fp8 with a scale for each token, `(T, 1, 1)`, or keys beside.

    Raises:
        RequestError: another type, more states than tokens, or another scale.
    """
    states, ids = source.entries[STATES], source.entries[IDS]
    T, layers, width = states.shape
    scale = source.entries.get(SCALES)
    if (scale is None and states.kind not in FLOAT_NAMES) or ids.kind not in INTEGERS:
        raise source.refuse(
            f"{STATES} {states}, {IDS} {ids}; vLLM writes floats of 16 bits or more, and int64"
        )
    if scale is not None and scale.shape not in ((T, 1), (T, 1, 1)):
        raise source.refuse(f"{SCALES} {scale}: give a scale for each token, {(T, 1, 1)}")
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
    of_token, of_stack = (
        scale and scale.map(partial(torch.reshape, shape=shape)) for shape in ((T, 1), (T, 1, 1))
    )
    outputs = {
        f"{STATES}.{i}": Outputs(states.map(lambda x, i=i: x[:, i].contiguous()), of_token)
        for i in range(layers)
    }
    stack = Outputs(states.map(lambda x: x[None]), of_stack)
    kind = f"vLLM hidden states: {T} tokens, {layers} layers, {width} channels"
    if more := sorted(set(source.entries) - {STATES, IDS, SCALES}):
        kind += f"; not read: {', '.join(more)}"
    stacks = {STATES: stack} if layers > 1 else {}
    return Capture(kind[:900], outputs, [ids.read().tolist()], stacks)
