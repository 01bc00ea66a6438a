"""The one decoder: its parts, and the keys of `model` that choose among their forms."""

from __future__ import annotations

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, PURPLE, Drawing

# Box -> (left, width, colour, what stands in it, the keys that shape it)
BOXES = (
    (20, 122, BLUE, "embedding", ("vocab, hidden", "positions: learned", "embedding_norm")),
    (190, 70, GREEN, "norm", ("norm", "norm_epsilon")),
    (284, 128, GREEN, "attention", ("heads, kv_heads", "head_dim, bias", "positions: rope, alibi", "window, soft_cap")),
    (452, 70, GREEN, "norm", ()),
    (546, 78, GREEN, "MLP", ("ffn, bias", "activation")),
    (686, 114, PURPLE, "norm, head", ("tied", "vocab")),
)


def draw() -> Drawing:
    d = Drawing(820, 236, "The decoder and its options")
    d.box(172, 34, 490, 178, "edge", filled=0)
    d.text(184, 54, "block, x layers", INK, bold=True)
    previous = None
    for left, width, colour, text, keys in BOXES:
        d.box(left, 92, width, 36, colour)
        d.text(left + width / 2, 114, text, colour, anchor="middle")
        for i, key in enumerate(keys):
            d.text(left, 148 + 16 * i, key, FAINT, size=10, mono=True)
        if previous is not None:
            d.line([(previous, 110), (left - 1, 110)], FAINT, arrow=True)
        previous = left + width
    for begin, end in ((181, 424), (440, 640)):
        d.line([(begin, 110), (begin, 74), (end, 74), (end, 108)], FAINT, arrow=True)
        d.text(end - 14, 92, "+", INK)
    return d
