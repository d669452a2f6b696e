"""Whether the masks of Flower's SecAgg+ hide an update from the server that relays the protocol.

Two clients run the client side of Flower's own protocol (`secaggplus_mod`) up to their masked vectors. Then the server
does what it can with what it has: the private masks, which the protocol tells it, and the numbers of samples, which are
sent beside. It does not look at the updates: they are only compared with what it found. What should be left is the mask
that both clients agreed upon. Its generator is numpy's RandomState with a seed of 32 bits, folded from base64 text,
whose bytes are below 128: 2**28 seeds. All of them are tried.

    python bench/secagg_masks.py
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLIENTS = (11, 22)  # node ids
SAMPLES = {11: 40, 22: 60}
WEIGHT, CLIP, TARGET, MODULUS = 1000.0, 8.0, 1 << 22, 1 << 32  # Flower's defaults
BLOCK = 1 << 18  # seeds that are tried together


def protocol(update: dict[int, NDArray[np.float32]]) -> tuple[dict[int, Any], dict[int, Any]]:
    """What the server receives: the masked vectors, and what each client would tell about private masks."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.app.message_type import MessageType
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitRes, Status, bytes_to_ndarray, ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
    from flwr.compat.common import recorddict_compat as compat
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # whose messages they are
    contexts = {node: Context(0, node, {}, RecordDict(), {}) for node in CLIENTS}

    def ask(node: int, **config: Any) -> Any:
        def train(message: Message, _: Context) -> Message:
            parameters = ndarrays_to_parameters([update[node]])
            found = FitRes(Status(Code.OK, ""), parameters, SAMPLES[node], {})
            return Message(compat.fitres_to_recorddict(found, False), reply_to=message)

        content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord(config)})
        message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
        return secaggplus_mod(message, contexts[node], train).content[RECORD_KEY_CONFIGS]

    setup = {Key.SAMPLE_NUMBER: 2, Key.SHARE_NUMBER: 2, Key.THRESHOLD: 2, Key.CLIPPING_RANGE: CLIP}
    setup |= {Key.TARGET_RANGE: TARGET, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: WEIGHT, Key.STAGE: Stage.SETUP}
    keys = {node: ask(node, **setup) for node in CLIENTS}
    public = {str(node): [keys[node][Key.PUBLIC_KEY_1], keys[node][Key.PUBLIC_KEY_2]] for node in CLIENTS}
    shares = {node: ask(node, **public, **{Key.STAGE: Stage.SHARE_KEYS}) for node in CLIENTS}
    masked, told = {}, {}
    for node, other in (CLIENTS, CLIENTS[::-1]):
        forward = {Key.CIPHERTEXT_LIST: shares[other][Key.CIPHERTEXT_LIST], Key.SOURCE_LIST: [other]}
        found = ask(node, **forward, **{Key.STAGE: Stage.COLLECT_MASKED_VECTORS})
        masked[node] = [bytes_to_ndarray(b) for b in found[Key.MASKED_PARAMETERS]]
    for node in CLIENTS:
        active = {Key.ACTIVE_NODE_ID_LIST: list(CLIENTS), Key.DEAD_NODE_ID_LIST: [], Key.STAGE: Stage.UNMASK}
        found = ask(node, **active)
        told[node] = dict(zip(found[Key.NODE_ID_LIST], found[Key.SHARE_LIST], strict=True))
    private = {owner: combine_shares([told[node][owner] for node in CLIENTS]) for owner in CLIENTS}
    return masked, private


def first_numbers(seeds: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The first output of RandomState(seed), for many seeds at once: Mersenne Twister, as published."""
    low, word, words = seeds.copy(), seeds.copy(), {}
    for i in range(1, 398):
        word = np.uint32(1812433253) * (word ^ (word >> np.uint32(30))) + np.uint32(i)
        if i in (1, 397):
            words[i] = word
    both = (low & np.uint32(0x80000000)) | (words[1] & np.uint32(0x7FFFFFFF))
    found: Any = (
        words[397] ^ (both >> np.uint32(1)) ^ np.where(both & np.uint32(1), np.uint32(0x9908B0DF), np.uint32(0))
    )
    found ^= found >> np.uint32(11)
    found ^= (found << np.uint32(7)) & np.uint32(0x9D2C5680)
    found ^= (found << np.uint32(15)) & np.uint32(0xEFC60000)
    out: NDArray[np.uint32] = found ^ (found >> np.uint32(18))
    return out


def all_seeds() -> Any:
    """Blocks of the seeds that a fold of bytes below 128 can give."""
    low = np.arange(1 << 14, dtype=np.uint32)
    low = (low & np.uint32(0x7F)) | ((low >> np.uint32(7)) << np.uint32(8))
    high = (low << np.uint32(16)).reshape(-1, BLOCK >> 14)
    for some in high:
        yield (some[:, None] | low[None, :]).ravel()


def main() -> None:
    from flwr.common.secure_aggregation.quantization import dequantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    sample = np.array([5, 17, 12345], dtype=np.uint32)
    assert first_numbers(sample).tolist() == [
        int(np.random.RandomState(int(s)).randint(0, MODULUS - 1, dtype=np.int64)) for s in sample
    ]
    rng = np.random.default_rng(1)
    update = {node: rng.normal(size=1000).astype(np.float32) for node in CLIENTS}
    masked, private = protocol(update)
    victim = CLIENTS[0]
    shapes = [part.shape for part in masked[victim]]
    own = pseudo_rand_gen(private[victim], MODULUS, shapes)
    left = [(part - mask) % MODULUS for part, mask in zip(masked[victim], own, strict=True)]
    weight = round(SAMPLES[victim] / WEIGHT * TARGET)
    # The client with the larger id adds the common mask, the other subtracts it.
    wanted = np.uint32((weight - int(left[0].reshape(-1)[0])) % MODULUS)
    began, tried = time.process_time(), 0
    for seeds in all_seeds():
        tried += len(seeds)
        for seed in seeds[first_numbers(seeds) == wanted]:
            mask = pseudo_rand_gen(int(seed).to_bytes(4, "little"), MODULUS, shapes)
            bare = (left[1] + mask[1]) % MODULUS
            if bare.max() <= TARGET:  # what a quantised number can be; behind a wrong mask they go up to 2**32
                found = dequantize([bare], CLIP, TARGET)[0] / (weight / TARGET)
                seconds = time.process_time() - began
                sys.stdout.write(
                    f"client {victim}: its update was recovered by the server, every number of it to "
                    f"{np.abs(found - update[victim]).max():.1e}, after {tried:,} of {1 << 28:,} seeds and "
                    f"{seconds:.0f} s of CPU time\n"
                )
                return
    sys.stdout.write("no seed fits: the masks are not what this script takes them for\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
