"""The models of anbar.yaml and the pure renderer of engine arguments."""
