from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("routing", "0006_polls"),
    ]

    operations = [
        migrations.AlterField(
            model_name="poolaccount",
            name="kind",
            field=models.CharField(
                choices=[
                    ("chatgpt", "ChatGPT sign-in"),
                    ("openai", "OpenAI API key"),
                    ("openai_compatible", "OpenAI-compatible endpoint"),
                    ("anthropic", "Anthropic API key"),
                ],
                max_length=20,
            ),
        ),
    ]
