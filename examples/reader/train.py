"""Trains the reader from nothing: `python train.py --out OUT`. Stopped, it goes on where its last checkpoint was.

On two cores, `torchrun --nproc-per-node 2 train.py --out OUT` gives each half of a step's rows.

A training that reached its `--tokens` goes on when told more of them, on more `--layers` too: the rates rise again and fall to
zero at the new end.

Each row is chats about worlds that were made for it and are never seen again; so the loss and the share of right answers
in a batch are those of new worlds already. A harder stage begins when nearly all answers of the present
one are right. Matrices are trained with Muon (https://kellerjordan.github.io/posts/muon), the rest with AdamW.
"""

import argparse
import json
import os
import random
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

import tokenizer as tokens_of
from chat import Stage, chat
from model import Reader, Shape, save
from stages import STAGES
from world import World

VOCABULARY = 1024
PASS = 0.85
"""Share of right answers at which the next stage begins."""
AT_MOST = 0.15
"""Share of all tokens after which it begins anyway."""


class Rows:
    """Makes rows of `length + 1` tokens and marks those that are answers."""

    def __init__(self, tokenizer, length: int):
        self.tokenizer, self.length = tokenizer, length

    def row(self, rng: random.Random, stage: Stage) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        answers: list[bool] = []
        while len(ids) <= self.length:
            for prompt, answer in chat(World(rng, held_out=False), stage):
                for text, is_answer in ((prompt, False), (answer + "<|im_end|>", True)):
                    more = self.tokenizer.encode(text).ids
                    ids += more
                    answers += [is_answer] * len(more)
                if len(ids) > self.length:
                    break
        return ids[: self.length + 1], answers[: self.length + 1]

    def batch(self, rng: random.Random, stage: Stage, rows: int) -> tuple[Tensor, Tensor]:
        made = [self.row(rng, stage) for _ in range(rows)]
        return torch.tensor([ids for ids, _ in made]), torch.tensor([answers for _, answers in made])


def muon_direction(moment: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: five Newton-Schulz steps."""
    x = moment.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.T if tall else x).float()


class Optimiser:
    """Keeps f32 weights of a bf16 model and their moments. Muon for matrices inside layers, AdamW for the rest."""

    def __init__(self, model: Reader, matrix_rate: float, other_rate: float):
        self.model = model
        self.rates = matrix_rate, other_rate
        self.masters = {name: weight.detach().float().clone() for name, weight in model.named_parameters()}
        self.first = {name: torch.zeros_like(weight) for name, weight in self.masters.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in self.masters.items() if not is_matrix(name)}
        self.steps = 0

    @torch.no_grad()
    def step(self, scale: float) -> None:
        self.steps += 1
        average([weight.grad for weight in self.model.parameters()])
        directions = self.directions()
        for name, weight in self.model.named_parameters():
            grad, master, first = weight.grad.float(), self.masters[name], self.first[name]
            if is_matrix(name):
                rate = scale * self.rates[0]
                master.mul_(1 - rate * 0.01)
                master.sub_(rate * max(1.0, master.shape[0] / master.shape[1]) ** 0.5 * directions[name])
            else:
                second = self.second[name]
                first.mul_(0.9).add_(grad, alpha=0.1)
                second.mul_(0.95).addcmul_(grad, grad, value=0.05)
                mean = first / (1 - 0.9**self.steps)
                spread = (second / (1 - 0.95**self.steps)).sqrt() + 1e-10
                master.sub_(scale * self.rates[1] * mean / spread)
                if name == "embed_tokens.weight":
                    # Rare tokens are pushed away from every answer alike, and would become one. The output layer does
                    # not see their mean.
                    master.sub_(master.mean(0))
            weight.copy_(master)
            weight.grad = None

    def directions(self) -> dict[str, Tensor]:
        """Where each matrix goes. Each process finds the directions of some."""
        count, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        found = {}
        for name, weight in self.model.named_parameters():
            if is_matrix(name):
                grad, first = weight.grad.float(), self.first[name]
                first.mul_(0.95).add_(grad)
                mine = len(found) % count == rank
                found[name] = count * muon_direction(grad + 0.95 * first) if mine else torch.zeros_like(grad)
        average(list(found.values()))
        return found

    def state(self) -> dict:
        return {"masters": self.masters, "first": self.first, "second": self.second, "steps": self.steps}

    def load(self, state: dict) -> None:
        """Goes on from a state; from one of fewer layers too, with new layers in the middle that add nothing yet."""
        self.steps = state["steps"]
        layers = self.model.shape.layers
        known = 1 + max(int(name.split(".")[1]) for name in state["masters"] if is_matrix(name))
        new = range(known // 2, known // 2 + layers - known)
        for mine, saved in ((self.masters, "masters"), (self.first, "first"), (self.second, "second")):
            for name, value in mine.items():
                start, _, rest = name.partition(".")
                at, _, rest = rest.partition(".")
                if start != "layers":
                    value.copy_(state[saved][name])
                elif int(at) not in new:
                    old = int(at) - len(new) * (int(at) >= new.stop)
                    value.copy_(state[saved][f"layers.{old}.{rest}"])
                elif rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                    value.zero_()
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(self.masters[name])


def average(tensors: list[Tensor]) -> None:
    """Makes of each tensor the mean of the processes' tensors."""
    if dist.is_initialized():
        all_of_them = torch.cat([tensor.float().flatten() for tensor in tensors])
        dist.all_reduce(all_of_them)
        for tensor, part in zip(tensors, all_of_them.split([tensor.numel() for tensor in tensors])):
            tensor.copy_((part / dist.get_world_size()).view_as(tensor))


def is_matrix(name: str) -> bool:
    return name.endswith("proj.weight")


def loss_of(model: Reader, ids: Tensor, answers: Tensor, share: float, other_weight: float) -> tuple[Tensor, Tensor]:
    """The loss over all answers and some other tokens, `share` of all together; and the answers' tokens that were right.

    The output layer is the widest of all, and is computed where there is a loss only.
    """
    targets, is_answer = ids[:, 1:].reshape(-1), answers[:, 1:].reshape(-1)
    count = int(share * targets.numel())
    places = (is_answer + torch.rand(targets.shape, device=ids.device)).topk(count).indices
    hidden = model.hidden(ids[:, :-1]).reshape(targets.numel(), -1)[places]
    logits = model.logits(hidden).float()
    losses = F.cross_entropy(logits, targets[places], reduction="none")
    weights = torch.where(is_answer[places], 1.0, other_weight)
    right = torch.ones_like(is_answer)
    right[places] = logits.argmax(-1) == targets[places]
    return (losses * weights).sum() / weights.sum(), right.view(ids.shape[0], -1)


def right_answers(right: Tensor, answers: Tensor) -> tuple[int, int]:
    """Whole answers of which every token was right, and all answers."""
    marks = answers[:, 1:]
    starts = marks & ~F.pad(marks, (1, 0))[:, :-1]
    number = starts.cumsum(1) - 1 + torch.arange(marks.shape[0], device=marks.device)[:, None] * marks.shape[1]
    wrong = torch.unique(number[marks & ~right])
    total = int(starts.sum())
    return total - len(wrong), total


def rate_scale(done: int, total: int) -> float:
    """Warms up over 2 % of the tokens, stays, and falls to zero over the last 60 %."""
    return min(1.0, 0.02 + done / (0.02 * total), max(0.0, (total - done) / (0.6 * total)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer, checkpoint, log and model")
    parser.add_argument("--tokens", type=float, default=20e6, help="tokens to train on")
    parser.add_argument("--rows", type=int, default=4, help="rows of a step; twice as many from the second stage on")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--long", type=int, default=1024, help="tokens of a row from the third stage on")
    parser.add_argument("--stage", type=int, help="begin at this stage, 0 to 3")
    parser.add_argument("--layers", type=int, default=4, help="more than a checkpoint's: new ones are put into its middle")
    parser.add_argument("--matrix-rate", type=float, default=0.012)
    parser.add_argument("--other-rate", type=float, default=0.0015)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if processes > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    if not (args.out / "tokenizer.json").exists() and rank == 0:
        tokens_of.train(VOCABULARY, args.seed, 4000).save(str(args.out / "tokenizer.json"))
    if processes > 1:
        dist.barrier()
    tokenizer = tokens_of.load(args.out)
    shape = Shape(vocabulary=tokenizer.get_vocab_size(), layers=args.layers)
    model = Reader(shape).to(args.device, torch.bfloat16)
    optimiser = Optimiser(model, args.matrix_rate, args.other_rate)
    at = {"tokens": 0, "stage": 0, "share": 0.0, "since": 0, "seconds": 0.0}
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=args.device)
        optimiser.load(saved["optimiser"])
        at = saved["at"]
    if args.stage is not None:
        at["stage"], at["share"], at["since"] = args.stage, 0.0, at["tokens"]
    if not args.no_compile:
        model.hidden = torch.compile(model.hidden)
    if rank == 0:
        print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    torch.manual_seed(args.seed + rank)
    log = (args.out / "log.jsonl").open("a")
    saved_at = began = time.monotonic()
    before = at["seconds"]
    losses: list[float] = []
    while at["tokens"] < args.tokens:
        last, long = at["stage"] == len(STAGES) - 1, at["stage"] >= 2
        # Small steps at first, when every step learns something new; larger ones cost less for each token.
        rows = args.rows if at["stage"] == 0 else 2 * args.rows
        rows, length = (rows * args.length // args.long, args.long) if long else (rows, args.length)
        rng = random.Random(f"{args.seed} {optimiser.steps} {rank}")
        ids, answers = Rows(tokenizer, length).batch(rng, STAGES[at["stage"]], rows // processes)
        ids, answers = ids.to(args.device), answers.to(args.device)
        loss, right = loss_of(model, ids, answers, share=0.35, other_weight=0.05 if at["stage"] else 0.2)
        loss.backward()
        optimiser.step(rate_scale(at["tokens"], args.tokens))
        at["tokens"] += rows * length
        counts = torch.tensor([*right_answers(right, answers), loss.item() / processes], dtype=torch.float64)
        if processes > 1:
            dist.all_reduce(counts)
        good, total, loss = counts.tolist()
        # A mean over the last fifty steps or so.
        at["share"] += 0.03 * (good / max(total, 1.0) - at["share"])
        losses.append(loss)
        at["seconds"] = before + time.monotonic() - began
        if rank == 0 and optimiser.steps % 50 == 0:
            line = {"step": optimiser.steps, "tokens": at["tokens"], "stage": at["stage"],
                    "loss": round(sum(losses) / len(losses), 4), "right": round(at["share"], 4), "seconds": round(at["seconds"])}
            losses.clear()
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            log.flush()
        if not last and (at["share"] > PASS or at["tokens"] > at["since"] + AT_MOST * args.tokens):
            at["stage"], at["share"], at["since"] = at["stage"] + 1, 0.0, at["tokens"]
        if rank == 0 and (time.monotonic() - saved_at > 180 or at["tokens"] >= args.tokens):
            saved_at = time.monotonic()
            torch.save({"optimiser": optimiser.state(), "at": at, "shape": asdict(shape)}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
            save(model, args.out, tokens_of.EOS)


if __name__ == "__main__":
    main()
