pub fn total(items: &[i64], _discount: i64) -> i64 {
    items.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain() {
        assert_eq!(total(&[1, 2], 0), 3);
    }

    #[test]
    fn discount() {
        assert_eq!(total(&[10, 20], 10), 27);
    }
}
