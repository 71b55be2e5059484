// The steps of client_versions.py by rskafka, which has neither groups nor transactions: it reads the partition instead.
use rskafka::client::{partition::{Compression, UnknownTopicHandling}, ClientBuilder};
use rskafka::record::Record;
use std::{collections::BTreeMap, time::Duration};

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn admin(server: &str, name: &str) -> Outcome {
    let client = ClientBuilder::new(vec![server.to_owned()]).build().await?;
    Ok(client.controller_client()?.create_topic(name.to_owned(), 1, 1, 5_000).await?)
}

async fn produce(server: &str, name: &str) -> Outcome {
    let client = ClientBuilder::new(vec![server.to_owned()]).build().await?;
    let partition = client.partition_client(name.to_owned(), 0, UnknownTopicHandling::Retry).await?;
    for _ in 0..3 {
        let record = Record {
            key: None, value: Some(b"v".to_vec()), headers: BTreeMap::new(), timestamp: chrono::Utc::now(),
        };
        partition.produce(vec![record], Compression::NoCompression).await?;
    }
    let (found, _) = partition.fetch_records(0, 1..1_000_000, 1_000).await?;
    if found.is_empty() { Err("no record".into()) } else { Ok(()) }
}

fn tell(step: &str, outcome: Result<Outcome, tokio::time::error::Elapsed>) {
    let told = match outcome {
        Ok(Ok(())) => String::new(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no end in 30 s".to_owned(),
    };
    println!("{step}\t{told}");
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().collect();
    let within = Duration::from_secs(30);
    tell("admin", tokio::time::timeout(within, admin(&given[1], &given[2])).await);
    tell("produce", tokio::time::timeout(within, produce(&given[1], &given[2])).await);
    println!("group\t-\ntransaction\t-");
}
