"""What Keras and TensorFlow users have without this project, at equal memory: see experiments/README.md."""
