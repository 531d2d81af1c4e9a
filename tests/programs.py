"""The first line of programs that tests run in processes of their own."""

# TensorFlow imports Keras, which imports these packages if they are installed. Without them, programs start sooner.
WITHOUT_OPTIONAL = "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'sklearn')))\n"
