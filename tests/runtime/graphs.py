"""Small graphs for the runtime's tests."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from placer.graph.source import GraphSource, read

tf1 = tf.compat.v1

BLOCK_BYTES = 1 << 26


def two_chains(length: int = 20, size: int = 256) -> GraphSource:
    """Two independent chains of matrix products, chain_0/ and chain_1/, summed in `out`."""
    with tf.Graph().as_default() as graph:
        ends = []
        for i in range(2):
            with tf.name_scope(f"chain_{i}"):
                weight = tf1.get_variable(f"w{i}", [size, size], use_resource=True)
                value = fixed = weight.read_value()
                for _ in range(length):
                    value = tf.matmul(value, fixed)
                ends.append(tf.reduce_sum(value))
        tf.add_n(ends, name="out")
    return read(graph.as_graph_def(), ["out"])


def fed_chain(length: int = 12, size: int = 512) -> GraphSource:
    """Chains of matrix products, chain_0/ and chain_1/, both of one random matrix, `shared`."""
    with tf.Graph().as_default() as graph:
        shared = tf.random.uniform([size, size], seed=1, name="shared")
        ends = []
        for i in range(2):
            with tf.name_scope(f"chain_{i}"):
                value = shared
                for _ in range(length):
                    value = tf.matmul(value, shared)
                ends.append(value.op)
        tf.group(*ends, name="end")
    return read(graph.as_graph_def(), ["end"])


def large_block() -> GraphSource:
    """`there` makes a block of BLOCK_BYTES and `out` adds it up."""
    with tf.Graph().as_default() as graph:
        start = tf1.random_uniform([])
        tf.reduce_sum(tf.fill([BLOCK_BYTES // 4], start, name="there"), name="out")
    return read(graph.as_graph_def(), ["out"])


def split_chains(source: GraphSource) -> np.ndarray:
    """int32[N]: the second chain on device 1, all else on device 0."""
    names = [n.name for n in source.graph_def.node]
    return np.array([int(n.startswith(("chain_1", "w1"))) for n in names], np.int32)


def everywhere(source: GraphSource, device: int) -> np.ndarray:
    """int32[N]: everything on one device."""
    return np.full(len(source.graph_def.node), device, np.int32)


def stateful() -> GraphSource:
    """All kinds of state and inputs that must be made up, and no init op."""
    with tf.Graph().as_default() as graph:
        table = tf1.get_variable("table", [7, 3], use_resource=True)
        ids = tf1.placeholder(tf.int32, [5, None], name="ids")
        embedded = tf.gather(table, tf.reshape(ids, [-1]))
        reference = tf1.get_variable("reference", [3, 3], use_resource=False)
        count = tf1.get_variable("count", [], tf.int64, use_resource=True)
        hidden = tf.matmul(embedded, reference)
        labels = tf1.placeholder(tf.int64, [5], name="labels")
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden)
        )
        lookup = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=lookup, keys=tf.constant(["a"]), default_value=tf.constant(3, tf.int64)
        )
        iterator = tf.raw_ops.IteratorV2(
            shared_name="", container="", output_types=[tf.float32], output_shapes=[[2, 2]]
        )
        batch = tf.raw_ops.IteratorGetNext(
            iterator=iterator, output_types=[tf.float32], output_shapes=[[2, 2]]
        )
        train = tf1.train.AdamOptimizer(0.01).minimize(loss, name="adam")
        bump = tf1.assign_add(count, 1).op
        rest = [tf.identity(found).op, tf.identity(batch[0]).op, bump]
        tf.group(train, *rest, name="train")
        tf.identity(loss, name="loss")
        tf.debugging.check_numerics(loss, "loss", name="finite")
    return read(graph.as_graph_def(), ["train", "finite"])
