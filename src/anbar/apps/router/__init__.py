"""The router process: composition root of the data path.

`load`, `health` and `engine` are what it knows of engines, `monitor` finds it out, `kv` follows their caches,
`prompts` turns prompts into tokens, `flow` and `relay` carry a request, `endpoints` answers everything else,
`build` makes the parts from a configuration and `app` runs them.
"""
