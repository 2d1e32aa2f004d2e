"""Structured mixers against matrices written out entry by entry, and against scipy's filters."""

import math
from typing import Any

import pytest
import torch
from scipy.linalg import toeplitz
from scipy.signal import lfilter

from arch import ModelError
from arch.mixers import build_mixer
from tests.arch.cases import random_mixer

D, T, CONTEXT = 8, 300, 320  # three chunks, the last one not whole
HEADS, SIZE = 2, 3


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def decays(part):
    """g of each head as a float, by its definition."""
    heads = part.values.shape[1]
    if part.rate is None:
        return [1.0] * heads
    return [1 / (1 + math.exp(p)) for p in part.rate.tolist()]  # exp(-log(1 + e^p))


def repeated(kind, v, g):
    """W[i][j] = v[j] g^(i-j) by source, else v[i] g^(i-j); zero above the diagonal."""
    rows = [
        [(v[j] if kind == "source" else v[i]) * g ** (i - j) if j <= i else 0.0 for j in range(T)]
        for i in range(T)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def written_out(mixer, name):
    """The matrices of each head and tap by the table of the paper, `[head][tap]`."""
    if name == "toeplitz":
        zeros = [0.0] * T
        return [
            [torch.from_numpy(toeplitz(w[:T].detach().numpy(), zeros).copy()).tril() for w in head]
            for head in mixer.values.transpose(0, 1)
        ]
    parts = dict(zip(mixer.kinds, mixer.parts, strict=True))
    found = {}
    for kind, part in parts.items():
        heads = zip(part.values.detach().transpose(0, 1).tolist(), decays(part), strict=True)
        found[kind] = [[repeated(kind, v, g) for v in head] for head, g in heads]
    if name == "mixed":
        return found["destination"] + found["source"]
    if name == "combined":
        pairs = zip(found["source"], found["destination"], strict=True)
        return [[a + b for a, b in zip(one, other, strict=True)] for one, other in pairs]
    return next(iter(found.values()))


def applied(matrices, x, bias):
    """Sum over taps of W x, each tap reading features k - (size - 1) // 2 further, + b."""
    outputs = []
    width, size = D // len(matrices), len(matrices[0])
    for h, taps in enumerate(matrices):
        own = x[..., h * width : (h + 1) * width]
        y = bias[h, :T, None].expand(T, width).clone()
        for k, W in enumerate(taps):
            after = k - (size - 1) // 2
            for d in range(width):
                if 0 <= d + after < width:
                    y[:, d] += W @ own[0, :, d + after]
        outputs.append(y)
    return torch.cat(outputs, -1)[None]


@pytest.mark.parametrize("name", ["toeplitz", "row", "column", "combined", "mixed"])
def test_a_mixer_is_its_matrices_written_out(name):
    decay = "" if name == "toeplitz" else ", decay=learnt"
    mixer = random_mixer(f"{name}(heads={HEADS}, size={SIZE}{decay})", D, CONTEXT)
    if decay:  # slow enough that what lies a chunk back counts
        with torch.no_grad():
            for part in mixer.parts:
                part.rate.sub_(5.0)
    matrices, x = written_out(mixer, name), drawn(1, T, D)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x), applied(matrices, x, mixer.bias))
        torch.testing.assert_close(
            mixer.maps(T), torch.stack([torch.stack(taps) for taps in matrices], 1)
        )


@pytest.mark.parametrize("decay", ["none", "learnt"])
def test_rows_and_columns_are_recursive_filters(decay):
    for name in ("row", "column"):
        mixer, x = random_mixer(f"{name}(decay={decay}, bias=false)", D, CONTEXT), drawn(2, T, D)
        (part,) = mixer.parts
        v, g = part.values[0, 0, :T, None].detach().numpy(), decays(part)[0]
        given = v * x.numpy() if name == "row" else x.numpy()
        expected: Any = lfilter([1.0], [1.0, -g], given, axis=1)
        expected = expected if name == "row" else v * expected
        torch.testing.assert_close(mixer(x).detach(), torch.from_numpy(expected))


def test_the_published_decay_has_its_constant_its_clip_and_its_bracket():
    x, context = drawn(1, 40, D), 1024  # c is 2
    mixer = random_mixer("combined(decay=published, bias=false)", D, context)
    rows, columns = mixer.parts
    with torch.no_grad():
        rows.rate[:], columns.rate[:] = 0.95, 0.5  # below 0.9: held there
    u, v = (part.values[0, 0].tolist() for part in (rows, columns))
    W = [[u[j] * 0.95 ** (i - j) / 2 + v[i] * 0.9 ** ((i - j) / 2) if j <= i else 0.0
          for j in range(40)] for i in range(40)]  # fmt: skip
    y = mixer(x)
    torch.testing.assert_close(y, torch.tensor(W, dtype=torch.float64) @ x)
    y.square().sum().backward()
    assert rows.rate.grad != 0
    assert columns.rate.grad == 0


@pytest.mark.parametrize("name", ["row", "column"])
def test_two_neighbouring_outputs_give_the_input(name):
    mixer, x = random_mixer(f"{name}(decay=learnt)", D, CONTEXT), drawn(1, T, D)
    (part,) = mixer.parts
    v, g = part.values[0, 0, :T, None], decays(part)[0]
    with torch.no_grad():
        mixed = mixer(x)[0] - mixer.bias[0, :T, None]
        sums = mixed if name == "row" else mixed / v
        found = sums[1:] - g * sums[:-1]
        found = found / v[1:] if name == "row" else found
    torch.testing.assert_close(found, x[0, 1:])


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("name", ["row", "column", "combined", "mixed"])
def test_a_recurrence_goes_step_by_step_to_where_forward_is(name, dtype, near):
    mixer: Any = build_mixer(f"{name}(heads=2, decay=learnt)", D, CONTEXT).to(dtype)
    mixer.reset_parameters()
    for part in mixer.parts:
        part.reset_parameters()
    x, state, outputs, numbers = drawn(2, T, D).to(dtype), None, [], set()
    with torch.no_grad():
        whole = mixer(x)
        for t in range(T):
            y, state = mixer.prefix(x[:, t : t + 1], state)
            outputs.append(y)
            numbers.add(sum(s.numel() for s in state.sums))
    apart = (torch.cat(outputs, 1) - whole).abs().max() / whole.abs().max()
    assert apart <= near
    assert numbers == {2 * D * (2 if name == "combined" else 1)}  # at every length


@pytest.mark.parametrize("name", ["toeplitz", "row", "column", "combined", "mixed"])
def test_a_later_token_moves_not_one_bit_across_chunks(name):
    decay = "" if name == "toeplitz" else "decay=learnt, "
    mixer, x = random_mixer(f"{name}({decay}heads=2)", D, CONTEXT, torch.float32), drawn(1, T, D)
    x = x.float()
    y = mixer(x)
    for t in (5, 127, 128, 200, 256):
        changed = x.clone()
        changed[:, t:] += 1
        assert torch.equal(mixer(changed)[:, :t], y[:, :t])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_long_texts_go_by_transforms_that_move_no_earlier_bit(dtype, monkeypatch):
    monkeypatch.setattr("arch.kernels.toeplitz.BLOCK", 64)
    entry = "toeplitz(heads=2, size=3, projections=true)"
    mixer, x = random_mixer(entry, D, CONTEXT, dtype), drawn(2, T, D).to(dtype)
    expected = mixer(x)
    monkeypatch.setattr("arch.mixers.structured.LONG", T)
    found = mixer(x)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(
        found, expected, rtol=1e-4, atol=1e-4 * float(expected.detach().abs().max())
    )
    gradients = [torch.autograd.grad(y.square().mean(), mixer.values)[0] for y in (expected, found)]
    near = 1e-4 * float(gradients[0].abs().max())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=near)
    for t in (63, 64, 200):
        changed = x.clone()
        changed[:, t:] += 1
        assert torch.equal(mixer(changed)[:, :t], found[:, :t])


@pytest.mark.parametrize(
    ("entry", "context", "said"),
    [
        ("row(decay=published)", 511, "511"),
        ("column(size=2, decay=published)", 255, "255"),
        ("toeplitz(heads=3)", 16, "heads=3"),
        ("row(size=0)", 16, "size"),
        ("mixed(heads=1)", 16, "heads=1"),
        ("combined(decay=slow)", 16, "slow"),
    ],
)
def test_what_cannot_be_built_is_refused(entry, context, said):
    with pytest.raises(ModelError, match=said):
        build_mixer(entry, D, context)


@pytest.mark.parametrize("name", ["toeplitz", "row", "column", "combined", "mixed"])
def test_an_empty_batch_has_no_outputs(name):
    mixer, x = random_mixer(name, D, CONTEXT), drawn(0, T, D).requires_grad_()
    y = mixer(x)
    y.sum().backward()
    assert y.shape == (0, T, D)
