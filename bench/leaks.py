"""How much of the forward speed the observations of the locomotion tasks still reveal.

R² of linear regressions of the root's x velocity, on random play: each feature alone, all of them
with a ridge penalty, and all with their products (episodes left out of the fit).
Run: python bench/leaks.py
"""

import gymnasium as gym
import numpy as np

import uvd.tasks.locomotion  # noqa: F401  (registers the tasks)

TASKS = ("HalfCheetahNonExploitable-v0", "HumanoidNonExploitable-v0")


def play(name: str, episodes: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations `[episodes, steps, D]` of random play, and the root's x velocity at each."""
    env = gym.make(name)
    env.action_space.seed(0)
    obs, speed = [], []
    for episode in range(episodes):
        env.reset(seed=episode)
        for _ in range(steps):
            obs.append(env.step(env.action_space.sample())[0])
            speed.append(env.unwrapped.data.qvel[0])  # type: ignore[attr-defined]
    return np.reshape(obs, (episodes, steps, -1)), np.reshape(speed, (episodes, steps))


def single(obs: np.ndarray, speed: np.ndarray) -> np.ndarray:
    """R² of each feature alone: its squared correlation with the speed."""
    return np.array([np.corrcoef(x, speed)[0, 1] ** 2 for x in obs.T])


def ridge(obs: np.ndarray, speed: np.ndarray, penalty: float = 1e-2, folds: int = 5) -> float:
    """R² of all features of `obs[episodes, steps, D]` together, on episodes left out of the fit."""
    rest = np.empty_like(speed)
    for fold in range(folds):
        out = np.arange(len(obs)) % folds == fold
        seen, target = obs[~out].reshape(-1, obs.shape[-1]), speed[~out].reshape(-1)
        centre, scale, mean = seen.mean(0), seen.std(0) + 1e-9, target.mean()
        x = (seen - centre) / scale
        gram = x.T @ x + penalty * len(x) * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, x.T @ (target - mean))
        rest[out] = speed[out] - mean - (obs[out] - centre) / scale @ weights
    return float(1 - (rest**2).mean() / speed.var())


def products(obs: np.ndarray) -> np.ndarray:
    """All features and their products."""
    z = (obs - obs.mean((0, 1))) / obs.std((0, 1))
    rows, columns = np.triu_indices(z.shape[-1])
    return np.concatenate([z, z[..., rows] * z[..., columns]], -1)


if __name__ == "__main__":
    for name in TASKS:
        for episodes, steps in ((200, 50), (40, 500)):
            obs, speed = play(name, episodes, steps)
            alone = single(obs.reshape(-1, obs.shape[-1]), speed.reshape(-1))
            print(
                f"{name}: {episodes} episodes of {steps} steps, speed {speed.std():.2f} m/s (std)"
            )
            print("  alone:", ", ".join(f"{i}: {alone[i]:.3f}" for i in np.argsort(-alone)))
            print(
                f"  all: {ridge(obs, speed):.3f}, with products: {ridge(products(obs), speed):.3f}"
            )
            pairs = np.concatenate([obs[:, 1:], obs[:, :-1]], -1)
            print(
                f"  all of two observations in a row: {ridge(pairs, speed[:, 1:]):.3f}", flush=True
            )
