"""What grappler makes of a step for a GPU that is not here: its passes take any devices that they are told of."""

from collections import Counter

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.device_properties_pb2 import NamedDevice
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.grappler.cluster import Cluster

_GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


def optimize_for_gpu(
    function: tf.types.experimental.ConcreteFunction,
    *,
    memory_bytes: int = 80 << 30,
    passes: tuple[str, ...] = (),
    keep_hosts: bool = False,
) -> GraphDef:
    """Runs grappler, or some of its passes, on a function whose operations are all on an H100 of so much memory.

    With `keep_hosts`, operations that are placed on the host stay there.
    """
    graph_def = function.graph.as_graph_def()
    for node in graph_def.node:
        node.device = _HOST if keep_hosts and node.device.endswith("CPU:0") else _GPU
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    meta_graph = tf.compat.v1.train.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    kept = [tensor.name for tensor in function.outputs] + [op.name for op in function.graph.control_outputs]
    meta_graph.collection_def["train_op"].node_list.value.extend(kept)
    config = ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.graph_options.rewrite_options.optimizers.extend(passes)
    hosts = [NamedDevice(name=_HOST)] if keep_hosts else []
    for host in hosts:
        host.properties.type = "CPU"
    cluster = Cluster(devices=[_describe_gpu(memory_bytes), *hosts])
    return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=cluster)


def count_ops(graph_def: GraphDef) -> Counter[str]:
    """Counts the operations of each type."""
    return Counter(node.op for node in graph_def.node)


def _describe_gpu(memory_bytes: int) -> NamedDevice:
    device = NamedDevice(name=_GPU)
    properties = device.properties
    properties.type, properties.vendor, properties.model = "GPU", "NVIDIA", "NVIDIA H100"
    properties.environment.update({"architecture": "9.0", "cuda": "12050", "cudnn": "90300"})
    properties.frequency, properties.num_cores = 1755, 132
    properties.memory_size, properties.bandwidth = memory_bytes, 3_350_000_000
    return device
