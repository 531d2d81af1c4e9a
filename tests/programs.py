"""What programs that tests run in processes of their own begin with."""

# TensorFlow imports Keras, which imports these where they are installed. A program that uses none starts much sooner.
WITHOUT_OPTIONAL = "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'sklearn')))\n"
