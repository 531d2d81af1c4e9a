"""What Keras users do: models and their data, each trained stock and rematerialized; tests take the rows from here."""
