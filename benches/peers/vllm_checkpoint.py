"""Writes a checkpoint for the `vllm` bench: a Qwen2 of 8 MB with random weights, and a tokenizer trained on XQuAD.

Usage: vllm_checkpoint.py XQUAD_FILE FOLDER
What it answers is noise; what its cache holds is as real as any model's. Text is cut as Qwen2's own tokenizer cuts it:
transformers does so for every model of this type, whatever tokenizer.json says.
"""

import json
import sys

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

xquad, folder = sys.argv[1:]
with open(xquad, encoding="utf-8") as file:
    articles = json.load(file)["data"]
texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]

bpe = Tokenizer(models.BPE())
words = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
bpe.normalizer = normalizers.NFC()
bpe.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(words, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
bpe.decoder = decoders.ByteLevel()
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4096, special_tokens=special, initial_alphabet=alphabet))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
# Tools stand in the first message, behind the system text, as Qwen's own templates have them.
tokenizer.chat_template = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if tools and loop.first %}\n\n# Tools\n{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
tokenizer.save_pretrained(folder)

torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=2,
    pad_token_id=0,
)
Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
