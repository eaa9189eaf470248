#!/usr/bin/env bash
# mutants.sh [NAME...]: plants each fault of tests/mutants (or those named) in a copy of the tree, and runs the test that its
# patch names: it must fail. `mutants.sh --check` only shows that each patch still applies.
#
# A patch begins with what the fault does, and a line "Caught by: <arguments of cargo test> <the test's full name>".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh

if [[ ${1-} == --check ]]; then
  for patch in tests/mutants/*.patch; do
    git apply --check "$patch" || die "$patch does not apply: plant its fault anew in the code as it is now"
    grep -q '^Caught by: -p .' "$patch" || die "$patch names no test that must fail"
  done
  exit
fi

patches=()
for name; do patches+=("tests/mutants/$name.patch"); done
((${#patches[@]})) || patches=(tests/mutants/*.patch)

# A copy of what is there, committed or not, beside a build directory of its own, which is kept for the next run. Each file
# gets the present time, as those that patch writes: cargo compiles what is newer than its last build.
tree=$PWD/target/mutants/tree
rm -rf "$tree"
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- | tar --extract --touch -C "$tree"
plant() { patch --directory "$tree" --strip 1 --quiet --no-backup-if-mismatch "$@"; }
export CARGO_TARGET_DIR=$PWD/target/mutants/build RUST_BACKTRACE=0

lived=()
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  read -ra caught_by <<<"$(sed -n 's/^Caught by: //p' "$patch")"
  test=${caught_by[-1]} arguments=("${caught_by[@]::${#caught_by[@]}-1}")
  plant <"$patch"
  say "$name: $test"
  log=target/mutants/$name.log
  (cd "$tree" && cargo test --locked "${arguments[@]}" -- --exact "$test") >"$log" 2>&1 || true
  plant --reverse <"$patch"
  # Neither a test that is not there nor code that does not compile is a fault that was caught.
  if grep -qxF "test $test ... FAILED" "$log"; then
    continue
  elif grep -qxF "test $test ... ok" "$log"; then
    lived+=("$name")
    warn "$name lives: $test does not see it"
  else
    die "$name: the test did not run (all output: $log)" "$(tail -n 3 "$log")"
  fi
done
((${#lived[@]} == 0)) || die "mutants that live: ${lived[*]}"
say "${#patches[@]} mutants, each caught by its test"
