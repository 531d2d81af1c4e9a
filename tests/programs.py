"""The first line of programs that tests run in processes of their own."""

# TensorFlow imports Keras, which imports these packages if they are installed. Without them, programs start sooner.
# So do they without searches for garbage among modules, which stay until the end.
WITHOUT_OPTIONAL = (
    "import gc, sys; sys.modules.update(dict.fromkeys(('matplotlib', 'sklearn'))); "
    "gc.disable(); import tensorflow; gc.freeze(); gc.enable()\n"
)
