"""HTTP/1.1 on asyncio protocols: the server that clients reach, the pooled client that reaches engines.

Own code instead of a framework because the router's cost per request and per streamed chunk is the product.
All decisions (framing, limits, timeouts, retries of stale connections) are taken in synchronous callbacks.
"""
