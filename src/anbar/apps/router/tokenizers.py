"""Tokenizers by the directory that they are in: loaded once, and again when its files have changed."""

import asyncio
from concurrent.futures import Executor

from anbar.adapters.vllm.tokenizer_files import Signature, signature
from anbar.adapters.vllm.tokens import Tokenizer, TokenizerOptions, load_tokenizer
from anbar.core.errors import ConfigError


class Tokenizers:
    """Use within one event loop; files are read on the threads of `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loading = asyncio.Lock()
        self._loaded: dict[tuple[str, int], tuple[Signature, Tokenizer | str]] = {}
        """By path and length of context: the files before they were read, and what came of it."""

    async def load(self, path: str, max_model_len: int) -> Tokenizer:
        """The tokenizer of the files as they are now. Raises ConfigError."""
        key = path, max_model_len
        loop = asyncio.get_running_loop()
        async with self._loading:  # the library behind it cannot be imported by two threads at once
            files = await loop.run_in_executor(self._executor, signature, path)
            known = self._loaded.get(key)
            if known is None or known[0] != files:
                options = TokenizerOptions(max_model_len=max_model_len or None)
                try:
                    found: Tokenizer | str = await loop.run_in_executor(
                        self._executor, load_tokenizer, path, options
                    )
                except ConfigError as error:
                    found = str(error)
                self._loaded[key] = known = files, found
        if isinstance(known[1], str):
            raise ConfigError(known[1])
        return known[1]

    async def has_changed(self, path: str, max_model_len: int) -> bool:
        """Whether `load` would look at other files than it did last, or never did."""
        known = self._loaded.get((path, max_model_len))
        if known is None:
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, signature, path) != known[0]

    def is_current(self, tokenizer: Tokenizer) -> bool:
        """Whether no other one has been loaded in the place of `tokenizer`."""
        return any(found is tokenizer for _, found in self._loaded.values())
