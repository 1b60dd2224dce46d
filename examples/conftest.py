"""The examples run under the same options as any suite; see the README."""
