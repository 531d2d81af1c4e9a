"""Lists XLA's backends, each with its rules.

- `CPU` (XLA:CPU of TensorFlow 2.21) strips barriers before it merges equal operations, so ties are selects. It runs an
  operation as soon as its operands exist, and transposes the inputs of filter gradients.
- `GPU` (XLA:GPU, seen on an H100) keeps barriers, and orders operations for memory. It writes and sums a value in one
  kernel; a barrier between the two would make it write the value and read it again. It also adds the parts of a
  weight's gradient in the kernel that updates the weight, and transposes a filter once for both passes. Therefore, only
  recomputation, operations that the schedule has after it, and random numbers wait. The other waits of a CPU would take
  more time there.
"""

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.order.ties import Barrier, Select
from checkmate_tf.executors.xla.rules.awaited_gradients import AwaitedGradients
from checkmate_tf.executors.xla.rules.concatenations import Concatenations
from checkmate_tf.executors.xla.rules.convolved_sums import ConvolvedSums
from checkmate_tf.executors.xla.rules.crowded_runs import CrowdedRuns
from checkmate_tf.executors.xla.rules.extremes_of_axes import ExtremesOfAxes
from checkmate_tf.executors.xla.rules.given_images import GivenImages
from checkmate_tf.executors.xla.rules.gradient_forms import GradientForms
from checkmate_tf.executors.xla.rules.held_relus import HeldRelus
from checkmate_tf.executors.xla.rules.held_results import HeldResults
from checkmate_tf.executors.xla.rules.late_reads import LateReads
from checkmate_tf.executors.xla.rules.losses_over_logits import LossesOverLogits
from checkmate_tf.executors.xla.rules.newest_result_waits import NewestResultWaits
from checkmate_tf.executors.xla.rules.one_pixel_filters import OnePixelFilters
from checkmate_tf.executors.xla.rules.operands_apart import OperandsApart
from checkmate_tf.executors.xla.rules.optimizer_zeros import OptimizerZeros
from checkmate_tf.executors.xla.rules.pooling_gradients import PoolingGradients
from checkmate_tf.executors.xla.rules.recomputed_first import RecomputedFirst
from checkmate_tf.executors.xla.rules.relu_gradients import ReluGradients
from checkmate_tf.executors.xla.rules.results_wait import ResultsWait
from checkmate_tf.executors.xla.rules.segment_sums import SegmentSums
from checkmate_tf.executors.xla.rules.slice_gradients import SliceGradients
from checkmate_tf.executors.xla.rules.slices import Slices
from checkmate_tf.executors.xla.rules.sources_wait import SourcesWait
from checkmate_tf.executors.xla.rules.summed_products import SummedProducts
from checkmate_tf.executors.xla.rules.sums_beside import SumsBeside
from checkmate_tf.executors.xla.rules.transposes import Transposes
from checkmate_tf.executors.xla.rules.volumes import Volumes
from checkmate_tf.executors.xla.rules.weights_written_over import WeightsWrittenOver

_LOWERINGS = (PoolingGradients(), ExtremesOfAxes(), SummedProducts(), SliceGradients())

CPU = Backend(
    "cpu",
    Select,
    (
        *_LOWERINGS,
        OnePixelFilters(),
        LossesOverLogits(),
        SegmentSums(),
        OperandsApart(),
        Slices(),
        ConvolvedSums(),
        Concatenations(),
        HeldResults(),
        Volumes(),
        AwaitedGradients(),
        Transposes(),
        GradientForms(),
        OptimizerZeros(),
        SourcesWait(),
        LateReads(),
        GivenImages(),
        ResultsWait(),
        NewestResultWaits(),
        CrowdedRuns(),
        WeightsWrittenOver(),
    ),
)

GPU = Backend(
    "gpu",
    Barrier,
    (
        *_LOWERINGS,
        ReluGradients(),
        HeldRelus(),
        Slices(are_together=True),
        ConvolvedSums(),
        SourcesWait(are_random=True),
        RecomputedFirst(),
        SumsBeside(),
    ),
    has_host_memory=True,
)


def find_backend(device: str) -> Backend:
    """Returns the backend of a device such as "CPU:0"."""
    return CPU if device.startswith("CPU") else GPU
