"""Records what `transformers` makes of the checkpoint, for the engine's test: `python reference.py FOLDER`.

Writes `reference.json`: held-out questions as chats with their documents in the user message, the prompt's tokens, the
logits behind them and the greedy answer, computed in f32. Only questions that are answered rightly, two of each kind.
"""

import argparse
import base64
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import chat
from evaluate import KINDS, Case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    questions = []
    for kind in KINDS:
        for at in range(2):
            questions.append(record(model, tokenizer, kind, at))
    text = json.dumps({"questions": questions}, ensure_ascii=False, indent=1) + "\n"
    (args.folder / "reference.json").write_text(text)


@torch.no_grad()
def record(model, tokenizer, kind: str, at: int) -> dict:
    for number in range(20):
        case = Case(f"reference {kind} {at} {number}", kind)
        messages = [
            {"role": "system", "content": chat.SYSTEMS[0]},
            {"role": "user", "content": chat.user([chat.block(d) for d in case.documents], case.asked.text)},
        ]
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        answer = tokenizer.encode(case.asked.answer) + [tokenizer.eos_token_id]
        logits = model(torch.tensor([tokens + answer])).logits[0, len(tokens) - 1 : -1]
        # Then the greedy answer is this one.
        if logits.argmax(-1).tolist() == answer:
            return {"kind": kind, "messages": messages, "tokens": tokens, "answer": case.asked.answer, "answer_tokens": answer,
                    "logits": base64.b64encode(logits[0].numpy().astype("<f4").tobytes()).decode()}
    raise SystemExit(f"of 20 questions of the kind {kind} none was answered rightly")


if __name__ == "__main__":
    main()
