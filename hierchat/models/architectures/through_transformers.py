"""Kinds of models that transformers' own modules compute, by transformers' names.

tests/models/test_families.py makes a tiny random model of each and compares it with transformers alone.
"""

from __future__ import annotations

from hierchat.models.architectures.layers import FULL, SLIDING

ATTENTION = {FULL, SLIDING, "chunked_attention"}
"""Layers that look back at keys and values."""
GRAPHED = frozenset(
    [
        "apertus",
        "arcee",
        "aria_text",
        "biogpt",
        "bitnet",
        "cohere",
        "ctrl",
        "dbrx",
        "dots1",
        "ernie4_5",
        "ernie4_5_moe",
        "flex_olmo",
        "gemma",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt-sw3",
        "gpt2",
        "gpt_neox",
        "granite",
        "granitemoe",
        "granitemoeshared",
        "helium",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "hy_v3",
        "hyperclovax",
        "internlm3",
        "iquestcoder",
        "jais2",
        "llama",
        "mellum",
        "minimax_m2",
        "minimax_m3_vl_text",
        "ministral3",
        "mistral",
        "mixtral",
        "nanochat",
        "olmo",
        "olmo2",
        "olmoe",
        "opt",
        "persimmon",
        "phi",
        "phi3",
        "phi4_multimodal",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "solar_open",
        "starcoder2",
    ]
)
"""Right over our slots, and over the static slots of CUDA graphs where no layer has a window."""
SLOTTED = GRAPHED | frozenset(
    [
        "afmoe",
        "axk1",
        "beam",
        "cohere2",
        "cohere2_moe",
        "cwm",
        "deepseek_v3",
        "diffllama",
        "exaone4",
        "exaone_moe",
        "flint",
        "fuyu",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
        "glm4_moe_lite",
        "gpt_bigcode",
        "gpt_oss",
        "granite_swa",
        "granitemoe_swa",
        "hrm_text",
        "kolibri1",
        "laguna",
        "llama4",
        "llama4_text",
        "longcat_flash",
        "mimo_v2_flash",
        "minicpm3",
        "ministral",
        "modernbert-decoder",
        "olmo3",
        "vaultgemma",
        "youtu",
    ]
)
"""Right over our slots, in trees: transformers' modules ask its attention interface, and keep keys and values alone."""
KEEPING_STATES = frozenset(
    [
        "bamba",
        "granitemoehybrid",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    ]
)
"""The same, with layers that keep a running state: each node of a tree has its own (engine/torch/states.py). Such a
model is computed so where its self-test finds every row exact, and else without drafts. With several experts in a layer
that is on processors alone (engine/torch/experts.py)."""
ALWAYS_EXPERTS = frozenset(["lfm2_moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"])
"""Those of KEEPING_STATES that never come without."""

_FILLS_IN = "it is made to fill in words, not to chat"
_ONE_TO_ANOTHER = "it is made to turn one text into another, not to chat"
_DRAFTS = "it drafts for one other model, and cannot chat by itself"
_NOT_WORDS = "it is made for sounds or pictures, not to chat"
MADE_FOR_ELSE = {
    **dict.fromkeys(
        [
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "reformer",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ],
        _FILLS_IN,
    ),
    **dict.fromkeys(
        [
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "marian",
            "mbart",
            "mvp",
            "pegasus",
            "plbart",
            "prophetnet",
            "t5",
            "umt5",
        ],
        _ONE_TO_ANOTHER,
    ),
    **dict.fromkeys(["gemma4_assistant", "gemma4_unified_assistant"], _DRAFTS),
    **dict.fromkeys(
        [
            "git",
            "got_ocr2",
            "moshi",
            "moss_transcribe_diarize",
            "musicgen",
            "musicgen_melody",
            "trocr",
            "whisper",
        ],
        _NOT_WORDS,
    ),
}
"""What transformers counts among the models that generate text, and that cannot chat; and why."""
