//! What a server says of itself, read from its text.

use super::*;
use crate::cluster::fixtures;

const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:a1b2\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n# Persistence\r\nloading:0\r\n\
    # Memory\r\nmaxmemory_policy:noeviction\r\n# Cluster\r\ncluster_enabled:0\r\n# Keyspace\r\n";

/// The answers of a server with this INFO and marker, and with the nonce of a decision.
fn answers(info: &str, marker: Option<&str>) -> Answers {
    let users = [
        "user default off sanitize-payload resetchannels -@all",
        "user ns-* on sanitize-payload #f00d ~redlock:* resetchannels -@all +get",
        "user ns-billing on sanitize-payload #a1 #b2 ~redlock:billing/* resetchannels -@all +get",
        "user operator on sanitize-payload #c3 ~* &* +@all",
    ];
    Answers {
        info: info.to_owned(),
        marker: marker.map(str::to_owned),
        nonce: Some("nonce".to_owned()),
        disarmed: None,
        users: users.map(str::to_owned).to_vec(),
        scripts: vec![true, true],
    }
}

fn parsed(answers: &Answers) -> Facts {
    parse_facts(answers, fixtures::facts(None).clock).unwrap()
}

fn read(info: &str, marker: Option<&str>) -> Facts {
    parsed(&answers(info, marker))
}

#[test]
fn a_server_is_read_from_what_it_says() {
    let facts = read(INFO, Some("a1b2 60000"));
    assert_eq!((facts.run_id.as_str(), facts.is_armed(), &facts.unfit), ("a1b2", true, &None));
    let digests = |all: &[&str]| all.iter().map(|&digest| digest.to_owned()).collect::<BTreeSet<_>>();
    let namespaces = [("billing".to_owned(), digests(&["a1", "b2"])), ("*".to_owned(), digests(&["f00d"]))];
    assert_eq!((facts.namespaces, facts.knows_setinfo), (namespaces.into(), false));
    for (version, knows) in [("7.2.4", true), ("8.0.0", true), ("7.1.99", false), ("10.0", true)] {
        assert_eq!(read(&INFO.replace("7.0.15", version), None).knows_setinfo, knows, "{version}");
    }
}

#[test]
fn a_server_that_must_not_vote_says_what_to_look_at_first() {
    for (from, to, why) in [
        ("role:master", "role:slave", "role is slave"),
        ("connected_slaves:0", "connected_slaves:2", "2 connected replicas"),
        ("cluster_enabled:0", "cluster_enabled:1", "cluster mode"),
        ("loading:0", "loading:1", "loading data"),
        ("noeviction", "allkeys-lfu", "maxmemory-policy is allkeys-lfu"),
    ] {
        let unfit = read(&INFO.replacen(from, to, 1), None).unfit.unwrap();
        assert!(unfit.contains(why), "{unfit:?} does not say {why:?}");
    }
}

#[test]
fn an_answer_without_what_is_needed_is_refused() {
    let error = parse_facts(&answers(&INFO.replace("run_id", "runid"), None), fixtures::facts(None).clock).unwrap_err();
    assert_eq!(error, AdminError::Refused("INFO without run_id".to_owned()));
}

#[test]
fn only_a_marker_of_this_very_process_makes_it_armed() {
    for (marker, armed) in
        [(Some("a1b2 60000"), true), (Some("c3d4 60000"), false), (Some("a1b2"), false), (None, false)]
    {
        assert_eq!(read(INFO, marker).is_armed(), armed, "{marker:?}");
    }
}

#[test]
fn a_server_that_was_never_armed_must_have_no_key_in_any_database() {
    let with = |keyspace: &str, marker| read(&format!("{INFO}{keyspace}"), marker);
    assert_eq!(with("db0:keys=1,expires=0,avg_ttl=0\r\n", None).unfit, None, "its nonce");
    for keyspace in ["db0:keys=2,expires=2,avg_ttl=5\r\n", "db0:keys=1,expires=0\r\ndb3:keys=1,expires=0\r\n"] {
        assert_eq!(with(keyspace, None).unfit.as_deref(), Some(FOREIGN_KEYS), "{keyspace:?}");
        assert_eq!(with(keyspace, Some("a1b2 60000")).unfit, None, "an armed one has locks");
    }
}

#[test]
fn a_server_that_was_disarmed_is_never_fit_again() {
    let disarmed = Answers { disarmed: Some("it lost its data".to_owned()), ..answers(INFO, None) };
    assert_eq!(parsed(&disarmed).unfit.as_deref(), Some("it lost its data"));
}

#[test]
fn one_script_that_is_missing_is_noticed() {
    assert!(read(INFO, None).has_scripts);
    assert!(!parsed(&Answers { scripts: vec![true, false], ..answers(INFO, None) }).has_scripts);
}
