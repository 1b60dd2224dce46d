"""Tiny models of `transformers` with random weights: one forward, one training step, and generation with a static cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_fusealias.build import Program

_SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}
_HEADS = {**_SMALL, "num_attention_heads": 4, "max_position_embeddings": 32}
_GATED = {**_HEADS, "intermediate_size": 48, "num_key_value_heads": 2}

# Name: its configuration class, its model class, the settings.
MODELS: dict[str, tuple[str, str, dict]] = {
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**_HEADS, "intermediate_size": 64}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GATED),
    # one key and value head for all queries, attention beside the MLP
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {
            **_HEADS,
            "multi_query": True,
            "new_decoder_architecture": False,
            "alibi": False,
            "parallel_attn": True,
        },
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", {**_GATED, "num_key_value_heads": 4}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_GATED, "head_dim": 8}),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**_GATED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {**_SMALL, "state_size": 4, "intermediate_size": 64, "time_step_rank": 4},
    ),
}
WAYS = ("forward", "train", "generate")
PROMPT, NEW, CACHE = 5, 4, 16  # tokens


@dataclass(frozen=True)
class ModelCase:
    """One model used in one way."""

    name: str
    way: str
    first: int = 0
    last: int = 1

    @property
    def train(self) -> bool:
        """True where a backward is run as well."""
        return self.way == "train"

    @property
    def key(self) -> str:
        """A name that stays."""
        return f"{self.name}/{self.way}"

    def singles(self) -> list[ModelCase]:
        """One model is one sample."""
        return [self]

    def build(self, device: str) -> Program:
        """Builds the model and its input; both follow from the seed."""
        model = self._model().to(device)
        tokens = torch.randint(0, _SMALL["vocab_size"], (2, PROMPT), device=device)
        return {"forward": _forward, "train": _train, "generate": _generate}[self.way](model, tokens)

    def _model(self) -> torch.nn.Module:
        import transformers

        config_class, model_class, settings = MODELS[self.name]
        config = getattr(transformers, config_class)(
            **settings, pad_token_id=0, bos_token_id=1, eos_token_id=2
        )
        config._attn_implementation = "sdpa" if self.name != "mamba" else None
        return getattr(transformers, model_class)(config).train(self.way == "train")


def _forward(model: torch.nn.Module, tokens: torch.Tensor) -> Program:
    def forward(tokens):
        return model(input_ids=tokens, use_cache=False).logits

    return Program(forward, (tokens,), state=model)


def _train(model: torch.nn.Module, tokens: torch.Tensor) -> Program:
    def loss(tokens):
        return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    return Program(loss, (tokens,), state=model)


def _generate(model: torch.nn.Module, tokens: torch.Tensor) -> Program:
    """The prompt and then token after token; keys and values are written into a cache of a fixed size."""
    cache = _cache(model, tokens)
    name = "cache_params" if hasattr(model.config, "state_size") else "past_key_values"

    def step(tokens, position):
        output = model(input_ids=tokens, use_cache=True, cache_position=position, **{name: cache})
        return output.logits[:, -1].argmax(-1, keepdim=True), output.logits

    def generate(step, tokens):
        produced = []
        positions = torch.arange(PROMPT + NEW, device=tokens.device)
        with torch.no_grad():
            given, position = tokens, positions[:PROMPT]
            for number in range(NEW):
                given, logits = step(given, position)
                produced.append(logits)
                position = positions[PROMPT + number : PROMPT + number + 1]
        return produced

    return Program(step, (tokens,), state=(model, cache), drive=generate)


def _cache(model: torch.nn.Module, tokens: torch.Tensor) -> object:
    import transformers

    if hasattr(model.config, "state_size"):
        return transformers.cache_utils.DynamicCache(config=model.config)
    return transformers.StaticCache(config=model.config, max_cache_len=CACHE)
