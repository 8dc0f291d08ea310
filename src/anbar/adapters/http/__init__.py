"""The OpenAI API over HTTP: our own server and upstream client on asyncio protocols."""
