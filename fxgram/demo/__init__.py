"""`fxgram demo`: Jacobian descent on handwritten digits; needs the extra `demo`."""
