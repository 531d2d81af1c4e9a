"""Writes a schedule of a graph with checkpoints at equal distances, with nothing but the standard library.

    python experiments/benchmark/sqrt_n.py FOLDER/GRAPH.json > SCHEDULE.json

It shows how a project of any language enters the benchmark: it reads a graph's JSON and writes a schedule's. The n
forward nodes are cut into segments of the square root of n nodes. Before the first backward node that reads a value of
a segment, the segment runs again, but for its last node.
"""

import json
import math
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    graph = json.load(file)
nodes = graph["nodes"]
forward = [index for index, node in enumerate(nodes) if not node["is_backward"]]
length = math.ceil(math.sqrt(len(forward)))
segments = [forward[first : first + length] for first in range(0, len(forward), length)]
segment_of = {value: segment for segment in segments for index in segment[:-1] for value in nodes[index]["outputs"]}
order, again = [], []
for index, node in enumerate(nodes):
    if node["is_backward"]:
        for value in reversed(node["inputs"]):
            segment = segment_of.get(value, [])
            if segment and segment not in again:
                again.append(segment)
                order += [inner for inner in segment[:-1] if nodes[inner]["recomputable"]]
    order.append(index)
json.dump({"format": "checkmate-schedule/1", "graph": graph["name"], "order": order, "solver": "sqrt_n.py"}, sys.stdout)
