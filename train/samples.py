"""What the model writes while it is trained, from fixed prompts and fixed chance."""

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, generate
from tokenizer import END_OF_TEXT
from train.settings import RunError

LENGTH, TEMPERATURE = 48, 0.8


class Samples:
    """Continues prompts.

    Chance is a generator of their own, seeded anew each time: texts of different steps differ by
    the model alone, and training does not notice.

    Args:
        prompts: at least one token each, and shorter than the context.
        tokenizer: the data's.
        context: the model's.
        seed: of the choice of tokens.

    Raises:
        RunError: a prompt is empty or too long.
    """

    def __init__(self, prompts: list[str], tokenizer: Tokenizer, context: int, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed
        self._prompts = {prompt: tokenizer.encode(prompt).ids for prompt in prompts}
        for prompt, ids in self._prompts.items():
            if not 0 < len(ids) < context:
                raise RunError(
                    f"--sample_prompts: {prompt!r} is {len(ids)} tokens; allowed: 1 to "
                    f"{context - 1}, so that there is something to add in --model.context {context}"
                )

    def draw(self, model: LanguageModel) -> list[dict[str, str]]:
        """Each `prompt` and the `text` after it."""
        device = model.embedding.weight.device
        training, stop = model.training, self._tokenizer.token_to_id(END_OF_TEXT)
        model.eval()
        samples = []
        for prompt, ids in self._prompts.items():
            chance = torch.Generator(device).manual_seed(self._seed)
            given = torch.tensor([ids], device=device)
            tokens = generate(model, given, LENGTH, TEMPERATURE, stop=stop, generator=chance)
            text = self._tokenizer.decode(tokens[0, len(ids) :].tolist())
            samples.append({"prompt": prompt, "text": text})
        model.train(training)
        return samples
