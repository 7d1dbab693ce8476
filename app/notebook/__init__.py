"""The research notebook's logic: figures frozen as data, the views they came from, and exports. No Streamlit here."""
