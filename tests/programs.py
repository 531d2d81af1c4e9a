"""The first lines of programs that tests run in processes of their own."""

# TensorFlow imports Keras, which imports these packages if they are installed. Without them, programs start sooner.
# So do they without searches for garbage among modules, which stay until the end.
WITHOUT_OPTIONAL = (
    "import gc, sys; sys.modules.update(dict.fromkeys(('matplotlib', 'sklearn'))); "
    "gc.disable(); import tensorflow; gc.freeze(); gc.enable()\n"
)

# A CPU as a host, CPU:0, and a device, CPU:1, which share one memory.
ON_TWO_DEVICES = f"""{WITHOUT_OPTIONAL}
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
