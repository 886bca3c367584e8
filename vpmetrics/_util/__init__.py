"""What every layer uses: types, argument checks, processes, descriptions of numbers."""
