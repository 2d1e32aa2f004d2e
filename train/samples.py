"""What the model writes while it is trained, from fixed prompts and fixed chance."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from tokenizers import Tokenizer

from arch import LanguageModel, generate
from tokenizer import END_OF_TEXT
from train.errors import RunError
from train.module import LanguageModule, ends_step
from train.progress import Progress
from train.records import Records

LENGTH, TEMPERATURE = 48, 0.8


class Samples(Callback):
    """Continues the prompts every so many steps and after the last one.

    Chance is its own generator's, seeded anew each time: texts of different steps differ by the
    model alone, and training does not notice.

    Args:
        prompts: at least one token each, and shorter than the context.
        every: steps between samples; 0 for none.
        tokenizer: the data's.
        context: the model's.
        seed: of the choice of tokens.
        progress: where they are shown.
        records: where they go.

    Raises:
        RunError: a prompt is empty or too long.
    """

    def __init__(
        self,
        prompts: list[str],
        every: int,
        tokenizer: Tokenizer,
        context: int,
        seed: int,
        progress: Progress,
        records: Records,
    ) -> None:
        self._prompts, self._every, self._seed = prompts, every, seed
        self._tokenizer, self._progress, self._records = tokenizer, progress, records
        if not every:
            return
        for prompt in prompts:
            length = len(tokenizer.encode(prompt).ids)
            if not 0 < length < context:
                raise RunError(
                    f"--sample_prompts: {prompt!r} is {length} tokens; allowed: 1 to "
                    f"{context - 1}, so that there is something to add in --model.context {context}"
                )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Writes when it is time to."""
        step = trainer.global_step
        if not self._every or not ends_step(trainer, batch_idx) or not trainer.is_global_zero:
            return
        if step % self._every and step != trainer.max_steps:
            return
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            return  # no device has the whole model
        assert isinstance(pl_module, LanguageModule)
        with self._progress.paused():
            samples = [
                {"prompt": prompt, "text": self._continue(pl_module.model, prompt)}
                for prompt in self._prompts
            ]
        self._records.add_samples(step, samples)
        for sample in samples:
            self._progress.say(f"step {step}  " + _one_line(sample["prompt"] + sample["text"]))

    def _continue(self, model: LanguageModel, prompt: str) -> str:
        device = model.embedding.weight.device
        ids = self._tokenizer.encode(prompt).ids
        tokens = generate(
            model.eval(),
            torch.tensor([ids], device=device),
            LENGTH,
            TEMPERATURE,
            stop=self._tokenizer.token_to_id(END_OF_TEXT),
            generator=torch.Generator(device).manual_seed(self._seed),
        )
        model.train()
        return self._tokenizer.decode(tokens[0, len(ids) :].tolist())


def _one_line(text: str) -> str:
    return " ".join(text.split())
