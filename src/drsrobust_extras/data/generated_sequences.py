"""Generated sequences of the shape of KuaiRand-1K (arXiv:2208.08696): 1,000 users, long-tailed videos, histories of very
different lengths; but one video for 100 views (there one for 3), so that a short training learns them.

A planted teacher draws each view among the videos that the user has not seen: of the topic that follows the last video's topic,
or of all videos. So the best reachable hit rate is known (`Dataset.facts`).
"""

from dataclasses import replace

import numpy as np

from drsrobust.data import Dataset
from drsrobust_extras.data.sequences import next_items

USERS, VIEWS_OF_A_VIDEO, VIDEOS_OF_A_TOPIC = 1_000, 100, 50
FOLLOWS = 0.8  # probability of a view of the next topic
TAIL = 0.8  # of the videos' weights, rank to the power of minus this
SPREAD = 0.8  # standard deviation of the logarithms of the histories' lengths
LEAST = 3  # views of a user


def kuairand_like(name: str, views: int, seed: int) -> Dataset:
    """The data set of about so many views; `facts` has `best_hit_rate@10`, the teacher's on the test rows."""
    rng = np.random.default_rng((seed, views))
    videos = max(2 * VIDEOS_OF_A_TOPIC, views // VIEWS_OF_A_VIDEO)
    topics = videos // VIDEOS_OF_A_TOPIC
    topic = rng.integers(0, topics, videos)
    follower = rng.permutation(topics)
    weight = (1 + rng.permutation(videos)) ** -TAIL
    of_topic = np.where(topic == np.arange(topics)[:, None], weight, 0.0)
    of_topic /= np.maximum(of_topic.sum(axis=1, keepdims=True), 1e-300)
    lengths = np.exp(rng.normal(0.0, SPREAD, USERS))
    lengths = np.clip(np.rint(lengths * views / lengths.sum()), LEAST, videos // 2).astype(int)
    seen, last = np.zeros((USERS, videos), bool), rng.integers(0, videos, USERS)
    drawn: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # users, videos, places in the teacher's order
    for step in range(lengths.max()):
        who = np.flatnonzero(lengths > step)
        chances = FOLLOWS * of_topic[follower[topic[last[who]]]] + (1 - FOLLOWS) * weight / weight.sum()
        chances[seen[who]] = 0.0
        sums = np.cumsum(chances, axis=1)
        number = (sums < (rng.random(len(who)) * sums[:, -1])[:, None]).sum(axis=1)
        chosen = np.minimum(number, videos - 1)
        place = (chances > chances[np.arange(len(who)), chosen][:, None]).sum(axis=1)
        seen[who, chosen], last[who] = True, chosen
        drawn.append((who, chosen, place))
    user, video, place = (np.concatenate(part) for part in zip(*drawn, strict=True))
    data = next_items(name, user, video, seed)
    return replace(data, facts={"best_hit_rate@10": float((place[data.test.rows] < 10).mean())})
