#!/bin/sh
# Installs OpenBLAS on Debian-like Linux where that is allowed; MLX runs without it, some 20 times slower.
[ "$(uname)" = Linux ] || exit 0
ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so\.0' && exit 0
if ! command -v apt-get >/dev/null; then
    echo "OpenBLAS is missing and there is no apt-get to install it; going on without it, slowly"
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    echo "OpenBLAS is missing and may not be installed without a password; going on without it, slowly"
    exit 0
fi
echo "installing OpenBLAS (libopenblas0)"
if ! { $sudo apt-get update -qq && $sudo apt-get install -y -qq libopenblas0; } >/dev/null 2>&1; then
    echo "OpenBLAS could not be installed; going on without it, slowly"
fi
exit 0
