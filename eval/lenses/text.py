"""Text for lenses that count or fit: tokens of a corpus' training stories."""

from tokenizers import Tokenizer
from torch import Tensor

from eval.probes.windows import story_windows


def sample_text(corpus: str, tokenizer: Tokenizer, count: int) -> Tensor:
    """The first `count` tokens of the training stories, joined by end-of-text, `(count,)`.

    Raises:
        RequestError: there are fewer, or a directory packed by another tokenizer.
        CorpusError: the corpus cannot be read.
    """
    return story_windows(corpus, "train", tokenizer, 1, count)[0]
