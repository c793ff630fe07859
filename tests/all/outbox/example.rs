pub async fn order(pool: &sqlx::PgPool, id: i32) -> sqlx::Result<()> {
    let mut transaction = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(id).execute(&mut *transaction).await?;
    sqlx::query("SELECT oncegate.publish('order.created', $1, deduplication_id => $2)")
        .bind(serde_json::json!({ "orderId": id }))
        .bind(format!("order-{id}"))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}
