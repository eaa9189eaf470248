#!/usr/bin/env bash
# words.sh [PATH...]: finds old words and descriptions of terms in the project's text, and names the word to use instead.
# docs/glossary.md has the words. Exits with 1 if it finds any. To add a word, add a line to the table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A Perl regex, a tab, what to use instead. In the order in which they are tried; of a place only the first counts.
table() {
  sed 's/ *=> */\t/' <<'EOF'
(node|call)[-_]?limit|(?i:node[-_]?timeout)                   => callTimeout, call_timeout, call-timeout
NodeArmed|NodeLost                                            => MasterArmed, MasterLost
cluster_nodes\w*|node_crashes\w*                              => redlock_cluster_masters…, redlock_master_crashes_total
redlock\.dev/node|redlock-node                                => redlock.dev/master, redlock-master
RedisNode|NodeError|NodeFailure|NodeStatus|NodeState          => RedisMaster, MasterError, MasterFailure, …
(?i:node)\w*                                                  => master for a Redis server; "Kubernetes node" for the other
(?<![a-zA-Z])bids?(?![a-z])|Bids?(?![a-z])                    => claim
[Ll]imits? on (a|an|one|the|each|every) (call|answer|attempt)s? => call timeout; "times out"
[Ll]imits? on (connecting|making a connection)                => connect timeout
\b[Gg](i|a)v(e|es|en|ing)( \w+){0,2} back\b                   => release, released
\b[Ll]eave to [a-z]+                                          => permission to …
\b[Ll]ook(ed|s|ing)? at\b                                     => read, polled, reconciled, checked
\b[Ll]ook(ed|s|ing)? whether\b                                => check whether
\bno news\b                                                   => unchanged; ignored
\b([Tt]hose|[Oo]ne|[Ww]ho) (who |that |which )?waits?\b       => waiter, contender, the first in the queue
\bat the first time\b                                         => the first time
\bReleased::Held\b                                            => Released::Freed
\b(src/redlock|redlock_operator::redlock)\b                   => redlock/src, redlock_engine
EOF
}

# Exact uses that are right: Kubernetes' own words, the runtime Node.js, other people's names.
allowed() {
  cat <<'EOF'
Kubernetes nodes?
"[Nn]ode" means a Kubernetes node
kubectl (get|delete|describe|cordon|drain|uncordon|taint) nodes?\b|"(delete|taint)", "nodes?"
node(Selector|Affinity|Name|Port)\b|node_(selector|affinity|name|port)\b
(?:set_)?nodelay
node_(affinity|taints)_policy|node(Affinity|Taints)Policy
v1::\{?[\w, ]*\bNode\b|[<&]Node[>,]|&Node\)|\bNode::(kind|default)\b|\bNodeList\b|"/nodes"|"get", "nodes"|kdev-node\d|\b(?:get_kubernetes_node|count_kubernetes_nodes)\b|\bkubernetes_node\b|node_?[iI]nfo|node\.kubernetes\.io|nodeshutdown|resources: \[nodes\]|"nodes", "customresourcedefinitions"
node-redlock
Node\.js|nodejs(:node)?|node_modules
"node": ">=|'node:\w+'|Command::new\("node"\)|node --version
EOF
}

# Files in which a node is a Kubernetes node, or the language of a peer.
KNOWS_NODES='^(hack/cluster/|redlock/benches/peers/(node/|run\.sh$|README\.md$|\.gitignore$))'
# Names and hashes that package managers write, and this list.
UNREAD='(^|/)(Cargo\.lock|go\.sum|go\.mod|package-lock\.json|deps\.sha256|LICENSE)$|^hack/words\.sh$'

# shellcheck disable=SC2016 # the variables are Perl's
search='
  use strict; use warnings; use utf8; use open qw(:std :encoding(UTF-8));
  my @words = map { my ($old, $new) = split /\t/; [qr/$old/, $new] } split /\n/, Encode::decode("UTF-8", $ENV{TABLE});
  my $any = join "|", map { $_->[0] } @words;
  my ($allowed, $knows_nodes) = (qr/$ENV{ALLOWED}/, qr/$ENV{KNOWS_NODES}/);
  my %hits;
  for my $file (@ARGV) {
    next unless -f $file && -T $file;
    open my $text, "<", $file or die "$file: $!";
    my $generated = 0;
    while (my $line = <$text>) {
      # What a run has measured is not rewritten.
      $generated = $1 eq "begin" if $line =~ /^<!-- (?:results|inner): (begin|end) -->/;
      next if $generated || $line !~ /$any/o;
      $line =~ s/$allowed/ /g;
      for my $word (@words) {
        next if $word->[0] =~ /node/i && $file =~ $knows_nodes;
        while ($line =~ s/($word->[0])/ /) {
          printf "%s:%d: %s: use %s\n", $file, $., $1, $word->[1];
          $hits{$file =~ m{^((?:redlock|charts|tests|docs)/[^/]+|[^/]+)/} ? $1 : "."}++;
        }
      }
    }
  }
  exit 0 unless %hits;
  print STDERR "old words, by folder: ", join(", ", map { "$_ $hits{$_}" } sort keys %hits), "\n";
  exit 1;
'
git ls-files --cached --others --exclude-standard -z -- "$@" | grep -zvP "$UNREAD" \
  | xargs -0 env KNOWS_NODES="$KNOWS_NODES" TABLE="$(table)" ALLOWED="$(allowed | paste -sd'|')" perl -MEncode -e "$search" \
  || exit 1
