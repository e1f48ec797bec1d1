"""A PPO loop of actor, critic, reference and reward model, which spends most of its time on rewards.

A loop in the manner of OpenRLHF: the actor generates answers; critic, reference and reward model work on them at the
same time; then actor and critic are trained. All models sleep where a real one uses a GPU. The reward model compares
each answer with the solution of its task, character by character on a CPU, and the other roles wait for it. With the
argument `fixed` it compares only the last lines, which have the results.

Expected: running
Members: driver rlhf_roles.py
Points at: rewards, values, kept = ray.get([rewards_ref, values_ref, kept_ref])
Ends in: Reward.score, 1 directly, 1 in all
"""

import os
import random
import sys
import time
from typing import Any

import ray

ANSWERS = 8
LINES = 34
FORWARD_S = 0.1
"""The time of a forward pass of a model."""


def answer_of(seed: int) -> str:
    digits = random.Random(seed)
    return "\n".join(f"step {line}: {digits.random():.18f}" for line in range(LINES))


def edit_distance(one: str, other: str) -> int:
    above = list(range(len(other) + 1))
    for row, mine in enumerate(one, 1):
        current = [row]
        for column, yours in enumerate(other, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (mine != yours)))
        above = current
    return above[-1]


class Actor:
    def generate(self, step: int) -> list[str]:
        time.sleep(2 * FORWARD_S)
        return [answer_of(step * ANSWERS + number) for number in range(ANSWERS)]

    def train(self, rewards: list[float], kept: list[float]) -> None:
        time.sleep(FORWARD_S)


class Critic:
    def values(self, answers: list[str]) -> list[float]:
        time.sleep(FORWARD_S)
        return [0.0] * len(answers)

    def train(self, rewards: list[float], values: list[float]) -> None:
        time.sleep(FORWARD_S)


class Reference:
    def log_probs(self, answers: list[str]) -> list[float]:
        time.sleep(FORWARD_S)
        return [0.0] * len(answers)


class Reward:
    def __init__(self, compares_results: bool) -> None:
        self.compares_results = compares_results

    def score(self, answers: list[str]) -> list[float]:
        return [self.reward(answer, answer_of(number)) for number, answer in enumerate(answers)]

    def reward(self, answer: str, solution: str) -> float:
        if self.compares_results:
            answer, solution = answer.rpartition("\n")[2], solution.rpartition("\n")[2]
        return 1.0 - edit_distance(answer, solution) / len(solution)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    role = ray.remote(num_cpus=0)
    actor: Any = role(Actor).remote()
    critic: Any = role(Critic).remote()
    reference: Any = role(Reference).remote()
    reward: Any = role(Reward).remote(compares_results=sys.argv[1:] == ["fixed"])
    for step in range(1, 1_000_000):
        began = time.monotonic()
        answers = actor.generate.remote(step)
        rewards_ref, values_ref = reward.score.remote(answers), critic.values.remote(answers)
        kept_ref = reference.log_probs.remote(answers)
        rewards, values, kept = ray.get([rewards_ref, values_ref, kept_ref])
        ray.get([actor.train.remote(rewards, kept), critic.train.remote(rewards, values)])
        print(f"step {step} took {time.monotonic() - began:.1f} s", flush=True)
        if step == 2:
            print("ready", flush=True)


if __name__ == "__main__":
    main()
