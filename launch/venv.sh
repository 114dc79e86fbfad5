# Sourced from the repository root: makes .venv with Python 3.11 and installs the project, unless that is done already.
# EXTRAS=test adds what the tests need. PYTHON names another interpreter.
_extras="${EXTRAS:+[$EXTRAS]}"
_stamp=".venv/.installed$_extras"

if ! [ -x .venv/bin/pip ]; then
    "${PYTHON:-python3.11}" -m venv .venv || { echo "launch/venv.sh: Python 3.11 with venv is needed" >&2; exit 1; }
fi
source .venv/bin/activate

if ! cat setup.py constraints.txt | cmp -s - "$_stamp"; then
    echo "Installing into .venv (the first time takes some minutes) ..."
    # The pin matters without CUDA: another torch may pull gigabytes of CUDA libraries.
    if ! command -v nvidia-smi >/dev/null; then
        python -m pip install --quiet "$(grep '^torch==' constraints.txt)"
    fi
    python -m pip install --quiet -c constraints.txt -e ".$_extras"
    cat setup.py constraints.txt >"$_stamp"
fi
